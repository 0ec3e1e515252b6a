//! Lists of reports, bounded while they are read.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::measure::{SAMPLE_EVERY, TIME_MAX};

/// Time that an end may take longer than the flow. Reason: late data takes 5 s, and a host may pause.
pub(super) const LONGER_MAX: Duration = Duration::from_secs(60);

/// Maximum number of samples of a stream.
pub(super) const SAMPLES_MAX: usize =
    ((TIME_MAX.as_millis() + LONGER_MAX.as_millis()) / SAMPLE_EVERY.as_millis()) as usize + 2;

/// Maximum number of intervals of a train. Reason: a sender that cannot keep its rate ends after 37.5 s.
pub(super) const BINS_MAX: usize = 4096;

/// Maximum number of echoes of a port, as of a specification.
pub(super) const ECHOES_MAX: usize = 1000;

/// Maximum number of other items of a list: sizes, and ports of echoes.
pub(super) const ITEMS_MAX: usize = 256;

/// Reads a list of at most `MAX` items. Reason: two bytes of JSON may stand for a sample of 200 bytes.
pub(super) fn list<'de, D, T, const MAX: usize>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct List<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(to, "a list of at most {MAX} items")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = from.next_element()? {
                if items.len() == MAX {
                    return Err(A::Error::custom(format!("a list of more than {MAX} items")));
                }
                items.push(item);
            }
            Ok(items)
        }
    }

    from.deserialize_seq(List::<T, MAX>(PhantomData))
}
