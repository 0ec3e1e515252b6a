//! `Serialize` for values that have a name for programs: JSON has the same spelling as flags and texts.

use serde::{Serialize, Serializer};

use crate::limit::Limit;
use crate::{Algorithm, ErrorKind, Phase, Retry, Scope, Setting};

macro_rules! serialize_by_name {
    ($($type:ty),+ $(,)?) => {
        $(impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        })+
    };
}

serialize_by_name!(Algorithm, ErrorKind, Limit, Phase, Retry, Scope, Setting);
