//! Parses the value of `--path`, such as `local=10.1.0.2,remote=gs.example.org,via=quic,rate=50Mbit`.

use std::net::IpAddr;
use std::str::FromStr;

use clap::ValueEnum;
use sterna_proto::BitRate;
use sterna_proto::location::HostPort;
use sterna_proto::plan::LANES_MAX;

/// `--via`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ViaFlag {
    /// sterna selects: QUIC on long paths, TCP on short ones, or the transport that carried more before
    Auto,
    /// TLS over parallel TCP connections
    Tcp,
    /// rate-controlled QUIC over UDP
    Quic,
}

/// One path of `--path`. Other flags give the values of absent keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathFlag {
    /// `local=`: address of this host to send from.
    pub local: Option<IpAddr>,
    /// `remote=`: address of the agent on this path.
    pub remote: Option<HostPort>,
    /// `via=`: transport.
    pub via: Option<ViaFlag>,
    /// `lanes=`: number of lanes.
    pub lanes: Option<u32>,
    /// `rate=`: rate of the path, with the meaning of `--rate`.
    pub rate: Option<BitRate>,
    /// `rate-max=`: rate cap of the path, with the meaning of `--rate-max`.
    pub rate_max: Option<BitRate>,
    /// `standby`: true if the path is used only while no other path is up.
    pub standby: bool,
}

impl FromStr for PathFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut path = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (key, value) = part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value)));
            if seen.contains(&key) {
                return Err(format!("{key} is given twice"));
            }
            seen.push(key);
            path.set(key, value)?;
        }
        if path.rate.is_some() && path.rate_max.is_some() {
            return Err("rate is a cap too: give it, or rate-max".to_owned());
        }
        Ok(path)
    }
}

impl PathFlag {
    fn set(&mut self, key: &str, value: Option<&str>) -> Result<(), String> {
        let wrong = |why: String| format!("{key}={}: {why}", value.unwrap_or_default());
        match (key, value) {
            ("standby", None) => self.standby = true,
            ("local", Some(text)) => {
                let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
                let address = bare.parse();
                self.local =
                    Some(address.map_err(|_| wrong("expected an address of this host as numbers".to_owned()))?);
            }
            ("remote", Some(text)) => self.remote = Some(text.parse().map_err(|why: &str| wrong(why.to_owned()))?),
            ("via", Some(text)) => {
                let via = <ViaFlag as ValueEnum>::from_str(text, false);
                self.via = Some(via.map_err(|_| wrong("expected auto, tcp or quic".to_owned()))?);
            }
            ("lanes", Some(text)) => match text.parse() {
                Ok(count @ 1..=LANES_MAX) => self.lanes = Some(count),
                _ => return Err(wrong(format!("expected a number from 1 to {LANES_MAX}"))),
            },
            ("rate", Some(text)) => self.rate = Some(text.parse().map_err(|e| wrong(format!("{e}")))?),
            ("rate-max", Some(text)) => self.rate_max = Some(text.parse().map_err(|e| wrong(format!("{e}")))?),
            _ => return Err(format!("{key}: expected some of {PARTS}, with commas between")),
        }
        Ok(())
    }
}

/// Keys of a path, for error texts.
const PARTS: &str = "local=ADDR, remote=HOST[:PORT], via=tcp|quic, lanes=N, rate=RATE, rate-max=RATE, standby";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_from_its_parts_and_what_is_wrong_is_named() {
        let path: PathFlag =
            "local=10.1.0.2,remote=[fd00::1]:7400,via=quic,lanes=2,rate=50Mbit,standby".parse().unwrap();
        let expected = PathFlag {
            local: Some([10, 1, 0, 2].into()),
            remote: Some(HostPort { host: "fd00::1".to_owned(), port: 7400 }),
            via: Some(ViaFlag::Quic),
            lanes: Some(2),
            rate: Some(BitRate::megabits(50)),
            rate_max: None,
            standby: true,
        };
        assert_eq!(path, expected);
        let wrong = [
            ("", "local=ADDR"),
            ("eth0", "eth0: expected some of"),
            ("local=eth0", "local=eth0: expected an address"),
            ("remote=", "the host is not a host name"),
            ("remote=h:0", "the port is not"),
            ("via=udp", "auto, tcp or quic"),
            ("lanes=0", "from 1 to"),
            ("rate=0Mbit", "a rate of zero"),
            ("rate=fast", "rate=fast"),
            ("rate=1Mbit,rate-max=2Mbit", "rate is a cap too"),
            ("standby,standby", "given twice"),
            ("standby=yes", "standby: expected some of"),
        ];
        for (text, part) in wrong {
            let error = text.parse::<PathFlag>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
