//! Rounds of agents that monitor a peer.

use sterna_doctor::monitor;
use sterna_net::identity::Fingerprint;

use super::open;
use crate::paths::{ObservedRound, RoundFilter};

#[tokio::test]
async fn rounds_of_a_path_are_kept_one_a_minute_for_a_year() {
    let opened = open().await;
    let store = &*opened.store;
    let observed = |peer: u8, at: u64| {
        let outcome = monitor::Outcome::Failed(monitor::Failure::Unreachable(at.to_string()));
        let round = monitor::Round { at, outcome };
        ObservedRound { observer: Fingerprint([1; 32]), peer: Fingerprint([peer; 32]), round }
    };
    let filter = |peer: u8, after, limit| RoundFilter {
        observer: Fingerprint([1; 32]),
        peer: Fingerprint([peer; 32]),
        after,
        limit,
    };
    let times = async |filter: RoundFilter| -> Vec<u64> {
        store.rounds(filter).await.unwrap().iter().map(|round| round.at).collect()
    };
    let start = 1_800_000_000;
    let rounds = [0, 59, 60, 300, 119].map(|after| observed(2, start + after));
    let rounds = rounds.into_iter().chain([observed(3, start)]).collect();
    store.set_measured("path", vec![("a b".to_owned(), serde_json::json!({"at": 7}))], rounds).await.unwrap();
    assert_eq!(store.settings("path").await.unwrap()[0].value, serde_json::json!({"at": 7}));
    assert_eq!(times(filter(2, 0, 10)).await, [start + 59, start + 119, start + 300]);
    assert_eq!(times(filter(2, start, 1)).await, [start + 119]);
    assert_eq!(times(filter(2, start + 300, 10)).await, [0; 0]);
    let later = start + 366 * 86_400 + 60;
    store.set_measured("path", Vec::new(), vec![observed(2, later)]).await.unwrap();
    assert_eq!(times(filter(2, 0, 10)).await, [start + 119, start + 300, later]);
    assert_eq!(times(filter(3, 0, 10)).await, [0; 0], "rounds of a path that nobody measures any more go, too");
}
