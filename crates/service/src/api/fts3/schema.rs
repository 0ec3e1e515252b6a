//! JSON schema of a submission, from the tables of the parameters that `submit` reads.
//!
//! Describes and refuses nothing: `submit` reads the requests.

use serde_json::{Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

/// Types of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Boolean, number, or a word such as `Y`.
    Flag,
    /// Integer, or a text that holds one.
    Integer,
    /// Text.
    Text,
    /// Boolean, or a word.
    Choice,
    /// Object, or a text.
    Metadata,
    /// Object.
    Object,
    /// List of URLs.
    Locations,
    /// List of tokens.
    Tokens,
}

impl Kind {
    fn types(self) -> &'static [Type] {
        match self {
            Self::Flag => &[Type::Boolean, Type::Integer, Type::String, Type::Null],
            Self::Integer => &[Type::Integer, Type::String, Type::Null],
            Self::Text => &[Type::String, Type::Null],
            Self::Choice => &[Type::Boolean, Type::String, Type::Null],
            Self::Metadata => &[Type::Object, Type::String, Type::Null],
            Self::Object => &[Type::Object, Type::Null],
            Self::Locations => &[Type::Array],
            Self::Tokens => &[Type::Array, Type::Null],
        }
    }

    fn schema(self, text: &str) -> RefOr<Schema> {
        let types: SchemaType = self.types().iter().cloned().collect();
        match self {
            Self::Locations => {
                let location = ObjectBuilder::new().schema_type(SchemaType::new(Type::String));
                ArrayBuilder::new().items(location).description(Some(text)).into()
            }
            Self::Tokens => {
                let token = ObjectBuilder::new().schema_type(SchemaType::new(Type::String));
                ArrayBuilder::new().schema_type(types).items(token).description(Some(text)).into()
            }
            _ => ObjectBuilder::new().schema_type(types).description(Some(text)).into(),
        }
    }
}

/// Parameters of a job.
const PARAMS: [(&str, Kind, &str); 31] = [
    (
        "verify_checksum",
        Kind::Choice,
        "Comparison of checksums: none, source, target or both, or the first letter; true: both",
    ),
    ("reuse", Kind::Flag, "Session reuse: all files have the same storages"),
    ("multihop", Kind::Flag, "The files are the hops of one file, in order"),
    ("overwrite", Kind::Flag, "A destination that exists is replaced"),
    ("overwrite_on_retry", Kind::Flag, "It is replaced from the second attempt on"),
    (
        "overwrite_when_only_on_disk",
        Kind::Flag,
        "A file that may be on tape stays: as long as no storage is asked for that, every one stays. Needs archive_timeout, \
         and destinations at https or davs",
    ),
    ("overwrite_hop", Kind::Flag, "A destination that exists is replaced by every hop but the last. Needs multihop"),
    ("priority", Kind::Integer, "Priority, from 1 to 5, the highest; others count as the nearest; 3 without it"),
    (
        "retry",
        Kind::Integer,
        "Maximum number of further attempts of a file; 0: that of the VO, and without one none; below 0: none",
    ),
    ("retry_delay", Kind::Integer, "First wait before another attempt, in seconds"),
    ("max_time_in_queue", Kind::Integer, "Maximum time in the queue: hours, or a number with s, m, h or d"),
    ("timeout", Kind::Integer, "Time limit of an attempt, in seconds"),
    ("nostreams", Kind::Integer, "Number of lanes of a transfer; 1, which bindings send always, counts as none"),
    ("buffer_size", Kind::Integer, "Kept and shown"),
    ("strict_copy", Kind::Flag, "Kept and shown"),
    ("disable_cleanup", Kind::Flag, "The part of a failed transfer stays at the destination"),
    ("ipv4", Kind::Flag, "Kept and shown"),
    ("ipv6", Kind::Flag, "Kept and shown"),
    ("s3alternate", Kind::Flag, "Kept and shown"),
    ("bring_online", Kind::Integer, "Kept and shown"),
    ("copy_pin_lifetime", Kind::Integer, "Kept and shown"),
    ("archive_timeout", Kind::Integer, "Kept and shown"),
    ("dst_file_report", Kind::Flag, "Kept and shown"),
    ("source_spacetoken", Kind::Text, "Kept and shown"),
    ("destination_spacetoken", Kind::Text, "Kept and shown"),
    ("target_qos", Kind::Text, "Kept and shown"),
    ("job_metadata", Kind::Metadata, "Data of the user, at most 2048 bytes"),
    ("id_generator", Kind::Text, "standard, or deterministic: the identifier follows from the VO and sid"),
    ("sid", Kind::Text, "Name from which a deterministic identifier follows"),
    ("account", Kind::Text, "Ignored"),
    ("gridftp", Kind::Text, "Ignored"),
];

/// Keys of a file.
const FILE: [(&str, Kind, &str); 12] = [
    ("sources", Kind::Locations, "URLs of replicas"),
    ("destinations", Kind::Locations, "URLs; each gets a copy"),
    ("source_tokens", Kind::Tokens, "Bearer tokens for the sources, as many as sources"),
    ("destination_tokens", Kind::Tokens, "Bearer tokens for the destinations, as many as destinations"),
    ("checksum", Kind::Text, "ALGORITHM:value, or ALGORITHM"),
    ("filesize", Kind::Integer, "Size in bytes"),
    ("activity", Kind::Text, "Activity"),
    ("metadata", Kind::Metadata, "Data of the user, at most 4096 bytes"),
    ("staging_metadata", Kind::Object, "Kept and shown, at most 1024 bytes"),
    ("archive_metadata", Kind::Object, "Kept and shown, at most 1024 bytes"),
    ("selection_strategy", Kind::Text, "Strategy that chooses among replicas; auto without it"),
    ("scitag", Kind::Integer, "Kept and shown: 65 to 65535"),
];

/// Keys of the request beside `params` and `files`.
const REQUEST: [(&str, Kind, &str); 1] = [("delete", Kind::Locations, "Refused: no job deletes files")];

/// Job that is submitted, in the description.
pub enum Submission {}

impl PartialSchema for Submission {
    fn schema() -> RefOr<Schema> {
        let object = |keys: &[(&str, Kind, &str)]| {
            keys.iter().fold(ObjectBuilder::new(), |object, (key, kind, text)| object.property(*key, kind.schema(text)))
        };
        let optional: SchemaType = [Type::Object, Type::Null].into_iter().collect();
        let params = object(&PARAMS).schema_type(optional).title(Some("Job parameters"));
        let file = object(&FILE).required("sources").required("destinations").title(Some("Transfer"));
        object(&REQUEST)
            .title(Some("Job submission"))
            .property("params", params)
            .property("files", ArrayBuilder::new().items(file))
            .required("files")
            .into()
    }
}

impl ToSchema for Submission {}

/// Returns the schema as a document of its own. `description`: that of the interface, which has the schema.
pub fn document(description: &str) -> Value {
    let mut description: Value = serde_json::from_str(description).unwrap_or_default();
    let mut schema = description.pointer_mut("/components/schemas/Submission").map(Value::take).unwrap_or_default();
    if let Value::Object(schema) = &mut schema {
        schema.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    }
    schema
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::fts3::submit;
    use crate::caller::Caller;

    #[test]
    fn the_schema_names_every_key_that_is_read() {
        let params: BTreeSet<&str> = PARAMS.iter().map(|(key, ..)| *key).collect();
        let request = json!({
            "params": {"id_generator": "deterministic", "sid": "x"},
            "files": [{"sources": ["mock://a/f"], "destinations": ["mock://b/f"]}],
        });
        let caller = Caller { vos: vec!["vo".to_owned()], ..Caller::default() };
        let read = submit::tests::keys_read(|| assert!(submit::read(request.to_string().as_bytes(), &caller).is_ok()));
        let named: BTreeSet<&str> =
            params.iter().copied().chain(FILE.iter().chain(&REQUEST).map(|(key, ..)| *key)).collect();
        let ignored = ["account", "gridftp"];
        let others = ["params", "files", "Files"];
        for key in &read {
            assert!(
                named.contains(key.as_str()) || others.contains(&key.as_str()),
                "{key} is read, and not in the schema"
            );
        }
        for key in named.iter().filter(|key| !ignored.contains(key)) {
            assert!(read.contains(*key), "{key} is in the schema, and not read");
        }
    }

    #[test]
    fn the_document_has_the_types_of_each_key() {
        let document = document(include_str!("openapi.json"));
        assert_eq!((&document["title"], &document["type"]), (&"Job submission".into(), &"object".into()), "{document}");
        let params = &document["properties"]["params"]["properties"];
        assert_eq!(params["overwrite"]["type"], json!(["boolean", "integer", "string", "null"]), "{document}");
        let file = &document["properties"]["files"]["items"];
        assert_eq!(file["required"], json!(["sources", "destinations"]));
        assert_eq!(file["properties"]["sources"]["items"]["type"], "string");
    }
}
