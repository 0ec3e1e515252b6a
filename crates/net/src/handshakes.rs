//! The TCP handshakes that are under way: at most so many, and none can keep an honest peer out.
//!
//! What it does: counts handshakes and, when one more than the limit begins, ends the oldest of the address that has the
//! most: who floods ends its own. What it refuses to do: shake hands, read a clock, or know who a peer is.

use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Mutex;

use crate::session::lock;

/// Handshakes at once. Reason: a stranger costs a thread until its handshake ends or times out, and no more than these.
pub const HANDSHAKES_MAX: usize = 64;

/// Handshakes under way, the oldest first.
#[derive(Default)]
pub struct Handshakes(Mutex<Vec<UnderWay>>);

struct UnderWay {
    number: u64,
    from: IpAddr,
    stream: TcpStream,
}

impl Handshakes {
    /// Takes note of the handshake `number` on `stream`; ends another when there are too many.
    ///
    /// Errors: the stream has no peer any more, or there is no descriptor to watch it with.
    pub fn begin(&self, number: u64, stream: &TcpStream) -> std::io::Result<()> {
        let begun = UnderWay { number, from: stream.peer_addr()?.ip(), stream: stream.try_clone()? };
        let mut under_way = lock(&self.0);
        if under_way.len() >= HANDSHAKES_MAX
            && let Some(index) = oldest_of_the_busiest(under_way.iter().map(|handshake| handshake.from))
        {
            // Its thread sees the end of the stream; one that has gone already is as good.
            let _ = under_way.remove(index).stream.shutdown(Shutdown::Both);
        }
        under_way.push(begun);
        Ok(())
    }

    /// Forgets the handshake `number`: it has ended; false when it was ended here.
    pub fn end(&self, number: u64) -> bool {
        let mut under_way = lock(&self.0);
        let before = under_way.len();
        under_way.retain(|handshake| handshake.number != number);
        under_way.len() < before
    }
}

/// Where the first of the addresses stands that are there most often.
fn oldest_of_the_busiest(addresses: impl Iterator<Item = IpAddr> + Clone) -> Option<usize> {
    let count = |address: IpAddr| addresses.clone().filter(|other| *other == address).count();
    let busiest = addresses.clone().map(count).max()?;
    addresses.clone().position(|address| count(address) == busiest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_floods_ends_its_own_oldest_handshake() {
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let addresses = [ip(1), ip(2), ip(3), ip(2), ip(4)];
        assert_eq!(oldest_of_the_busiest(addresses.into_iter()), Some(1));
        assert_eq!(oldest_of_the_busiest([ip(1), ip(2)].into_iter()), Some(0));
        assert_eq!(oldest_of_the_busiest([].into_iter()), None);
    }
}
