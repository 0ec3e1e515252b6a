//! Settings of a copy or an agent, by which errors and decisions say what the user can change.
//!
//! A library does not know the flags, configuration keys or form fields of its user. It names settings; the user interface maps each to
//! its own word.

macro_rules! settings {
    ($($variant:ident $name:literal $doc:literal),+ $(,)?) => {
        /// One setting of a copy or an agent.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Setting {
            $(#[doc = $doc] $variant),+
        }

        impl Setting {
            /// Every setting.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Name in JSON and on the wire; never changed.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// Returns the setting with this name.
            pub fn of(name: &[u8]) -> Option<Self> {
                Self::ALL.iter().copied().find(|setting| setting.name().as_bytes() == name)
            }
        }
    };
}

settings! {
    Paths "paths" "Network paths that are used together.",
    Transport "transport" "TCP or QUIC.",
    Lanes "lanes" "Number of connections.",
    Congestion "congestion" "Congestion control of TCP lanes.",
    Rate "rate" "Rate of the path.",
    RateMin "rate_min" "Least rate to send at.",
    RateMax "rate_max" "Most to send.",
    Scavenger "scavenger" "Yields to all other traffic.",
    LossCeiling "loss_ceiling" "Loss that counts as noise.",
    Memory "memory" "Memory for data in flight.",
    Overwrite "overwrite" "Treatment of files that exist.",
    Expect "expect" "Digest that the file must have.",
    Follow "follow" "Sends files while they grow.",
    SourceDisposition "then" "Deletes or moves sources that have arrived.",
    Replicas "replicas" "Treats the sources as replicas of one file.",
    DryRun "dry_run" "Reports what would be copied, and copies nothing.",
    Linger "linger" "Time that a session outlives its last lane.",
    Trust "trust" "Keys of trusted agents.",
    WebToken "web_token" "Bearer token for web servers.",
    WebTokenCommand "web_token_command" "Command that prints a bearer token for web servers.",
    WebAuthority "web_authority" "Certificates of authorities for web servers.",
    Listen "listen" "Address and port of an agent.",
    Authorize "authorize" "Keys that an agent serves.",
    ThirdParty "third_party" "Agents that copies of others may reach from an agent.",
}
