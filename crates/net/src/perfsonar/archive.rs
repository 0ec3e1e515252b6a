//! Archives of perfSONAR: OpenSearch behind a web server (perfSONAR 5), and the REST interface of esmond (perfSONAR 4).

use serde_json::{Value, json};
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::exchange::{Ask, Exchange, with_path};
use super::{NodeTimes, NodeTrust};
use crate::engine::Cancel;

/// Results in one reply of OpenSearch. Reason: a trace has some kB, so a page has some MB at most.
const PAGE: usize = 500;

/// Maximum number of results. Source: `index.max_result_window` of OpenSearch, above which it refuses a page.
pub(super) const RESULTS_MAX: usize = 10_000;

/// Maximum number of measurements of esmond that are read. Reason: a pair of hosts has one for each set of parameters.
pub(super) const MEASUREMENTS_MAX: usize = 50;

/// Path of OpenSearch on an archive.
const OPENSEARCH_PATH: &str = "/opensearch";

/// Maximum size of all replies of a search, bytes. Reason: 10,000 results of some kB. They are held in memory, which
/// takes ten times that.
const ARCHIVE_BYTES_MAX: usize = 64 << 20;

/// Interface of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveKind {
    /// OpenSearch.
    OpenSearch,
    /// Esmond, or its translator elmond.
    Esmond,
}

impl ArchiveKind {
    /// Returns the interface that a URL names.
    pub fn of(url: &WebLocation) -> Self {
        let is_esmond = url.path().split('/').any(|name| name == "esmond" || name == "perfsonar");
        if is_esmond { Self::Esmond } else { Self::OpenSearch }
    }
}

/// Question to an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveQuery<'a> {
    /// Type of the test, as pScheduler names it.
    pub test: &'a str,
    /// Types of events of esmond, the leading one first.
    pub events: &'a [&'a str],
    /// Fields of OpenSearch that are returned.
    pub fields: &'a [&'a str],
    /// Host name or address of the source.
    pub source: &'a str,
    /// Host name or address of the destination.
    pub dest: &'a str,
    /// Seconds before now from which results are returned.
    pub since_s: u64,
}

/// Results of an archive.
#[derive(Clone, Debug, PartialEq)]
pub enum ArchiveReply {
    /// Documents of OpenSearch, the oldest first.
    OpenSearch {
        /// `_source` of each.
        documents: Vec<Value>,
        /// Number of results that match; more than documents if there are too many.
        total: u64,
    },
    /// Values of esmond, by measurement and type of event.
    Esmond(Vec<EsmondSeries>),
}

/// Values of one type of event.
#[derive(Clone, Debug, PartialEq)]
pub struct EsmondSeries {
    /// Number of the measurement in the reply.
    pub measurement: usize,
    /// Type of event.
    pub event: String,
    /// Pairs `ts` and `val`.
    pub values: Vec<Value>,
}

/// Reads results of an archive.
///
/// Errors: as of a request; `NotFound` if the archive has no such interface.
pub fn read_archive(
    url: &WebLocation,
    query: &ArchiveQuery<'_>,
    trust: &NodeTrust,
    times: NodeTimes,
    cancel: &Cancel,
) -> Result<ArchiveReply, Error> {
    match ArchiveKind::of(url) {
        ArchiveKind::OpenSearch => {
            search(&Exchange::new(&with_path(url, OPENSEARCH_PATH)?, trust)?, query, times, cancel)
        }
        ArchiveKind::Esmond => esmond(&Exchange::new(&with_path(url, "")?, trust)?, query, times, cancel),
    }
}

/// Reads all pages of a search.
fn search(
    exchange: &Exchange,
    query: &ArchiveQuery<'_>,
    times: NodeTimes,
    cancel: &Cancel,
) -> Result<ArchiveReply, Error> {
    // An index that no result has created yet is no failure.
    let path = format!("/pscheduler_{}/_search?ignore_unavailable=true&allow_no_indices=true", query.test);
    let (mut documents, mut seen, mut bytes) = (Vec::new(), 0, 0_usize);
    loop {
        let ask = Ask::post(path.clone(), search_body(query, seen), times.request);
        let reply = exchange.send(&ask, cancel)?;
        bytes = bytes.saturating_add(reply.size());
        if bytes > ARCHIVE_BYTES_MAX {
            return Err(reply.foreign(&format!("the replies have more than {} MiB", ARCHIVE_BYTES_MAX >> 20)));
        }
        let json = reply.json()?;
        let hits = json.get("hits").ok_or_else(|| reply.foreign("the reply has no hits"))?;
        let total = total_of(hits).ok_or_else(|| reply.foreign("the hits have no total"))?;
        let page = hits.get("hits").and_then(Value::as_array).ok_or_else(|| reply.foreign("the hits are no list"))?;
        seen += page.len();
        // A result may have no content.
        documents.extend(page.iter().take(PAGE).filter_map(|hit| hit.get("_source").cloned()));
        // A short page is the last one, whatever the total says.
        if page.len() < PAGE || seen as u64 >= total || seen >= RESULTS_MAX {
            return Ok(ArchiveReply::OpenSearch { documents, total });
        }
    }
}

/// Returns the number of results: an object since Elasticsearch 7, and a number before.
fn total_of(hits: &Value) -> Option<u64> {
    let total = hits.get("total")?;
    total.get("value").unwrap_or(total).as_u64()
}

fn search_body(query: &ArchiveQuery<'_>, from: usize) -> Value {
    let end = |meta: &str, spec: &str, host: &str| {
        let mut ways = vec![
            json!({"term": {format!("test.spec.{spec}.keyword"): host}}),
            json!({"term": {format!("meta.{meta}.hostname.keyword"): host}}),
        ];
        // A name would be refused as the value of an address.
        if host.parse::<std::net::IpAddr>().is_ok() {
            ways.push(json!({"term": {format!("meta.{meta}.ip"): host}}));
        }
        json!({"bool": {"should": ways, "minimum_should_match": 1}})
    };
    json!({
        "from": from,
        "size": PAGE,
        "track_total_hits": true,
        "sort": [{"pscheduler.start_time": {"order": "asc", "unmapped_type": "date"}}],
        "_source": query.fields,
        "query": {"bool": {"filter": [
            end("source", "source", query.source),
            end("destination", "dest", query.dest),
            {"range": {"pscheduler.start_time": {"gte": format!("now-{}s", query.since_s)}}},
        ]}},
    })
}

/// Reads the measurements between two hosts, and then the values of each.
fn esmond(
    exchange: &Exchange,
    query: &ArchiveQuery<'_>,
    times: NodeTimes,
    cancel: &Cancel,
) -> Result<ArchiveReply, Error> {
    let (leading, since) = (query.events.first().copied().unwrap_or_default(), query.since_s);
    let encoded =
        |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    let path = format!(
        "/?event-type={leading}&source={}&destination={}&time-range={since}&limit={MEASUREMENTS_MAX}&format=json",
        encoded(query.source),
        encoded(query.dest)
    );
    let reply = exchange.send(&Ask::get(path, times.request), cancel)?;
    let measurements = reply.json()?;
    let measurements = measurements.as_array().ok_or_else(|| reply.foreign("the reply is no list of measurements"))?;
    let (mut series, mut count) = (Vec::new(), 0);
    for (measurement, metadata) in measurements.iter().take(MEASUREMENTS_MAX).enumerate() {
        let types = metadata.get("event-types").and_then(Value::as_array);
        let mut read: Vec<&str> = Vec::new();
        for descriptor in types.into_iter().flatten() {
            let event = descriptor.get("event-type").and_then(Value::as_str).unwrap_or_default();
            // A measurement has an event once; more of them would be requests without end.
            if !query.events.contains(&event) || read.contains(&event) || count >= RESULTS_MAX {
                continue;
            }
            read.push(event);
            let base = descriptor.get("base-uri").and_then(Value::as_str).unwrap_or_default();
            let url = beside(exchange, base)?;
            let reply =
                exchange.send(&Ask::get(format!("{url}?time-range={since}&format=json"), times.request), cancel)?;
            let json = reply.json()?;
            let values = json.as_array().ok_or_else(|| reply.foreign("the reply is no list of values"))?;
            let values: Vec<Value> = values.iter().take(RESULTS_MAX - count).cloned().collect();
            count += values.len();
            series.push(EsmondSeries { measurement, event: event.to_owned(), values });
        }
    }
    Ok(ArchiveReply::Esmond(series))
}

/// Returns the URL of values. Errors: it is at another server, which is not asked.
fn beside(exchange: &Exchange, base_uri: &str) -> Result<String, Error> {
    let url = exchange.at().join(base_uri)?;
    if base_uri.is_empty() || url.origin() != exchange.at().origin() || url.url().contains('?') {
        let text = format!("{}: the archive names values at {url:?}, which is another server", exchange.at());
        return Err(Error::new(ErrorKind::Protocol, Scope::Service, Phase::Prepare, text));
    }
    Ok(url.url().trim_end_matches('/').to_owned())
}
