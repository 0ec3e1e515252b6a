//! Tests of the lab with real programs on two hosts. Without root or `/dev/net/tun` each test prints a note and passes.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use sterna_lab::model::{Outage, Queue, Shaper};
use sterna_lab::{Counters, Lab, LabOptions, LinkModel};
use sterna_proto::{BitRate, ByteCount};

/// Starts a lab. Names are unique to the test, so that tests may run at the same time.
fn start(name: &str, model: &LinkModel) -> Option<Lab> {
    if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/net/tun").exists() {
        println!("skipped: the lab needs root and /dev/net/tun");
        return None;
    }
    Some(Lab::start(model, &LabOptions { name: Some(unique(name)), ..LabOptions::default() }).unwrap())
}

fn unique(name: &str) -> String {
    format!("test-{name}-{}", std::process::id())
}

fn path() -> LinkModel {
    LinkModel::clean(BitRate::megabits(500), Duration::from_millis(10))
}

fn listen(lab: &Lab) -> TcpListener {
    lab.host_b().inside(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap()
}

fn connect(lab: &Lab, port: u16) -> TcpStream {
    let address = SocketAddr::from((lab.host_b().address(), port));
    lab.host_a().inside(move || TcpStream::connect(address)).unwrap()
}

/// Sends `data` over one TCP connection from `a` to `b` and compares the received data.
fn transfer(lab: &Lab, data: &[u8]) {
    let listener = listen(lab);
    let mut sender = connect(lab, listener.local_addr().unwrap().port());
    let (mut receiver, _) = listener.accept().unwrap();
    let received = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut received = Vec::new();
            receiver.read_to_end(&mut received).unwrap();
            received
        });
        sender.write_all(data).unwrap();
        drop(sender);
        reader.join().unwrap()
    });
    assert!(received == data, "{} of {} bytes arrived, or they differ", received.len(), data.len());
}

fn payload(len: usize) -> Vec<u8> {
    (0..len as u32).flat_map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()).take(len).collect()
}

/// Checks the conditions of every run: no packet refused by a kernel or malformed, and enough memory.
fn assert_sound(counters: &Counters) {
    let router = &counters.router;
    assert_eq!((router.refused, router.malformed, router.memory_full), (0, 0, 0), "{counters:?}");
}

#[test]
fn a_tcp_transfer_arrives_byte_for_byte() {
    let Some(lab) = start("tcp", &path()) else { return };
    transfer(&lab, &payload(20_000_000));
    let counters = lab.finish().unwrap();
    assert_sound(&counters);
    let forward = &counters.networks[0].forward;
    assert!(forward.carried_bytes > 20_000_000, "{forward:?}");
    // The router split super-packets: on the wire no packet is larger than the MTU.
    assert!(forward.carried_packets > 20_000_000 / 1460, "{forward:?}");
}

#[test]
fn a_tcp_transfer_survives_every_impairment_at_once() {
    let mut model = path();
    model.forward.loss = 0.01;
    model.reverse.loss = 0.01;
    model.forward.duplicate = 0.02;
    model.forward.jitter = Duration::from_millis(1);
    model.forward.queue = Queue::Bdp(0.2);
    model.forward.reorder = Some(sterna_lab::model::Reorder { probability: 0.02, delay: Duration::from_millis(3) });
    model.strip.sack = true;
    let Some(lab) = start("worst", &model) else { return };
    transfer(&lab, &payload(3_000_000));
    let counters = lab.finish().unwrap();
    assert_sound(&counters);
    // A SYN-ACK never offers an option that its SYN did not offer.
    assert!(counters.router.options_stripped >= 1);
    assert!(counters.networks[0].forward.dropped.loss > 0 && counters.networks[0].forward.duplicated_packets > 0);
}

#[test]
fn a_packet_above_the_path_mtu_is_answered_and_tcp_adapts() {
    let mut model = path();
    model.mtu = 9000;
    model.path_mtu = Some(1400);
    let Some(lab) = start("mtu", &model) else { return };
    transfer(&lab, &payload(1_000_000));
    let counters = lab.finish().unwrap();
    assert_sound(&counters);
    assert!(counters.router.icmp_sent > 0 && counters.networks[0].forward.dropped.mtu > 0, "{counters:?}");
}

#[test]
fn a_clamped_mss_and_a_shaper_act_on_real_connections() {
    let mut model = path();
    model.mss_clamp = Some(1000);
    let shaper = Shaper { rate: BitRate::megabits(100), burst: ByteCount(20_000), queue: Queue::Bdp(1.0) };
    model.forward.shaper = Some(shaper);
    let Some(lab) = start("clamp", &model) else { return };
    transfer(&lab, &payload(1_000_000));
    let counters = lab.finish().unwrap();
    assert_sound(&counters);
    // The SYN of each side, and those that were sent again.
    assert!(counters.router.mss_clamped >= 2, "{counters:?}");
    let forward = &counters.networks[0].forward;
    assert!(forward.carried_packets >= 1000 && forward.shaped_packets > 100, "{forward:?}");
}

#[test]
fn a_setting_of_one_host_leaves_the_other() {
    let Some(_) = start("settings-probe", &path()) else { return };
    let setting = |value: &str| vec![("net.ipv4.tcp_sack".to_owned(), value.to_owned())];
    let options = LabOptions {
        name: Some(unique("settings")),
        sysctls: setting("1"),
        host_sysctls: [setting("0"), Vec::new()],
        ..LabOptions::default()
    };
    let lab = Lab::start(&path(), &options).unwrap();
    let sack = |host: &sterna_lab::Host| {
        let output = host.command("cat").arg("/proc/sys/net/ipv4/tcp_sack").output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!([lab.host_a(), lab.host_b()].map(sack), ["0", "1"]);
    let whole = [Vec::new(), vec![("net.core.rmem_max".to_owned(), "4194304".to_owned())]];
    let options = LabOptions { name: Some(unique("whole")), host_sysctls: whole, ..LabOptions::default() };
    let error = Lab::start(&path(), &options).err().unwrap();
    assert!(error.text().contains("net.core.rmem_max") && error.text().contains("--sysctl"), "{error}");
}

#[test]
fn datagrams_arrive_whole_on_both_networks() {
    let mut model = path();
    model.second = Some(Box::new(path()));
    let Some(lab) = start("udp", &model) else { return };
    for (a, b) in lab.host_a().addresses().iter().zip(lab.host_b().addresses()) {
        let receiver = lab.host_b().inside(|| UdpSocket::bind((*b, 0))).unwrap();
        let sender = lab.host_a().inside(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
        // Ends a test that hangs. The test makes no promise about time.
        receiver.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        let mut buffer = [0; 65_536];
        // 0 and 1 byte, the largest datagram without fragments, and two that the sender's kernel fragments.
        for len in [0, 1, 1472, 1473, 20_000] {
            let data = payload(len);
            sender.send_to(&data, receiver.local_addr().unwrap()).unwrap();
            let (received, from) = receiver.recv_from(&mut buffer).unwrap();
            assert!(buffer[..received] == data, "a datagram of {len} bytes");
            assert_eq!(from.ip(), *a, "the reply goes back by the same network");
        }
    }
    let counters = lab.finish().unwrap();
    assert_sound(&counters);
    assert!(counters.networks.iter().all(|network| network.forward.carried_packets >= 18), "{counters:?}");
}

#[test]
fn a_command_on_a_host_sees_its_addresses_and_the_lab_leaves_nothing_behind() {
    let Some(lab) = start("command", &path()) else { return };
    let record = format!("/run/sterna-lab/{}.json", lab.name());
    assert!(std::path::Path::new(&record).exists());
    let output =
        lab.host_b().command("sh").args(["-c", "echo $STERNA_LAB $STERNA_LAB_A $STERNA_LAB_B"]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{} 10.77.0.1 10.77.1.1\n", lab.name()));
    let mut forgotten = lab.host_a().command("sleep").arg("1000").spawn().unwrap();
    drop(lab);
    let status = forgotten.wait().unwrap();
    assert!(!status.success(), "a program left on a host is ended: {status}");
    assert!(!std::path::Path::new(&record).exists());
}

#[test]
fn an_outage_of_the_model_cuts_real_packets() {
    let mut model = path();
    model.outages = vec![Outage { start: Duration::ZERO, length: Duration::from_secs(3600), every: None }];
    let Some(lab) = start("outage", &model) else { return };
    let sender = lab.host_a().inside(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    for _ in 0..10 {
        sender.send_to(b"lost", (lab.host_b().address(), 9)).unwrap();
    }
    let counters = lab.finish().unwrap();
    let forward = &counters.networks[0].forward;
    assert_eq!((forward.offered_packets, forward.dropped.outage), (10, 10), "{forward:?}");
}

#[test]
fn a_network_that_is_cut_drops_packets_until_it_is_connected_again() {
    let Some(lab) = start("cut", &path()) else { return };
    let receiver = lab.host_b().inside(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    let address = (lab.host_b().address(), receiver.local_addr().unwrap().port());
    let sender = lab.host_a().inside(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    lab.cut(0);
    sender.send_to(b"lost", address).unwrap();
    // Ends a test that would hang.
    let until = Instant::now() + Duration::from_secs(120);
    while lab.counters().networks.first().is_none_or(|network| network.forward.dropped.outage == 0) {
        assert!(Instant::now() < until, "the packet was not dropped");
        std::thread::yield_now();
    }
    lab.connect(0);
    sender.send_to(b"kept", address).unwrap();
    let mut received = [0; 8];
    receiver.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let len = receiver.recv(&mut received).unwrap();
    assert_eq!(&received[..len], b"kept");
}

#[test]
fn a_path_that_no_memory_holds_is_refused_in_words() {
    let model = LinkModel::clean(BitRate::megabits(1_000_000), Duration::from_secs(60));
    let error = Lab::start(&model, &LabOptions::default()).err().unwrap();
    assert!(error.text().contains("lower rate, rtt or queue"), "{error}");
}
