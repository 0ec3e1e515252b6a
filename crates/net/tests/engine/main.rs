//! The engine as a program of others uses it: against an agent in this process, over loopback.

mod copies;
mod grants;
mod iperf3;
mod leaving;
mod measure;
mod ndt7;
mod packets;
mod probes;
mod queries;
mod served;
