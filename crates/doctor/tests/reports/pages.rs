//! Pages and plots.

use std::collections::BTreeSet;

use quick_xml::Reader;
use quick_xml::events::Event;
use sterna_doctor::bundle::Proof;
use sterna_doctor::evidence::{Direction, Evidence, Outcome};
use sterna_doctor::report::exclude::{CAUSES, Ruling, Rulings, alike};
use sterna_doctor::report::figures::{Figure, figures};
use sterna_doctor::report::html::Page;
use sterna_doctor::report::{About, Report, text};
use sterna_doctor::verdict::Cause;

use super::examined::{about, policed};

/// Returns the page and the plots.
pub fn drawn(evidence: &Evidence, about: &About) -> (String, Vec<Figure>) {
    let report = Report::new(evidence, about);
    let proof = Proof { digest: "0a".to_owned(), signers: vec!["SHA256:doctor".to_owned()] };
    let page = Page { report: &report, evidence, about, proof: &proof }.render();
    (page, figures(evidence, &report))
}

/// Returns the names of the elements of an XML text; fails if it is not well formed.
pub fn elements(xml: &str) -> Vec<String> {
    let mut reader = Reader::from_str(xml);
    let mut names = Vec::new();
    loop {
        match reader.read_event().unwrap_or_else(|e| panic!("{e} in {xml}")) {
            Event::Start(start) => names.push(start.name().as_ref().to_owned()),
            Event::Eof => return names,
            _ => {}
        }
    }
}

#[test]
fn a_page_stands_alone() {
    let (page, figures) = drawn(&policed(), &about());
    assert!(page.starts_with("<!DOCTYPE html>"));
    for outside in ["<script", "<link", "<img", " src=", "@import", "https://"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("http://").count(), page.matches("http://www.w3.org/2000/svg").count());
    let names: BTreeSet<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
    assert_eq!(names.len(), figures.len(), "names are unique");
    for name in [
        "ladder-forward",
        "ladder-reverse",
        "rate-forward",
        "rate-reverse",
        "train-forward",
        "loss-forward",
        "sizes-forward",
        "round-trips",
    ] {
        assert!(names.contains(name), "{name} in {names:?}");
        assert_eq!(page.matches(&format!("id=\"{name}\"")).count(), 1, "{name}");
    }
    // The return direction has no long train and one short one.
    assert!(!names.contains("train-reverse") && !names.contains("loss-reverse"));
    for said in [
        "A to B: policer is the limit",
        "B to A: receive buffer is the limit",
        "198.51.100.4",
        "192.0.2.7:7373",
        "6.18.0",
        "SHA256:doctor",
        "2026-09-21 14:13:20 UTC",
    ] {
        assert!(page.contains(said), "{said}");
    }
}

#[test]
fn plots_are_files_with_words_for_those_who_do_not_see_them() {
    let (_, figures) = drawn(&policed(), &about());
    for figure in figures {
        let names = elements(&figure.file());
        let count = |name: &str| names.iter().filter(|found| *found == name).count();
        assert_eq!((count("title"), count("desc"), count("style")), (1, 1, 1), "{}", figure.name);
        assert!(!figure.file().contains("NaN") && !figure.file().contains("inf\""), "{}", figure.name);
    }
}

#[test]
fn the_train_of_a_policer_shows_its_bucket() {
    let (page, figures) = drawn(&policed(), &about());
    let train = figures.iter().find(|figure| figure.name == "train-forward").unwrap();
    assert!(train.caption.contains("That is a policer."), "{}", train.caption);
    let (_, after) = page.split_once("Bytes that passed beyond a steady ").unwrap();
    assert!(after.starts_with("100 Mbit/s (dashed: bucket of ") || after.starts_with("99."), "{}", &after[..60]);
    assert!(page.contains("iperf3 -c 192.0.2.7 -u -b 160"), "a command without Sterna");
}

#[test]
fn each_verdict_excludes_what_looks_like_it() {
    let evidence = policed();
    let report = Report::new(&evidence, &about());
    let forward = Rulings::new(&evidence, &report, Direction::Forward).unwrap();
    assert_eq!(forward.of(Cause::Policer), Ruling::Found);
    for cause in [Cause::Shaper, Cause::RandomLoss, Cause::ReceiveBuffer, Cause::SendBuffer, Cause::NoSack] {
        assert!(matches!(forward.of(cause), Ruling::Excluded(_)), "{cause:?}: {:?}", forward.of(cause));
    }
    let reverse = Rulings::new(&evidence, &report, Direction::Reverse).unwrap();
    assert_eq!(reverse.of(Cause::ReceiveBuffer), Ruling::Found);
    assert!(matches!(reverse.of(Cause::Policer), Ruling::Excluded(text) if text.contains("up to that rate")));
    // Nothing was observed about the sizes in this direction.
    assert!(matches!(reverse.of(Cause::PmtuBlackHole), Ruling::Open(_)));
    for cause in CAUSES {
        assert!(!alike(cause).is_empty() && !alike(cause).contains(&cause), "{cause:?}");
    }
}

#[test]
fn an_examination_without_results_has_a_page() {
    for evidence in [Evidence::default(), Evidence { records: policed().records[..1].to_vec(), ..Evidence::default() }]
    {
        let (page, _) = drawn(&evidence, &About::default());
        assert!(page.contains("there is no verdict"), "{page}");
    }
}

/// Texts with which a peer could try to change a page.
pub const HOSTILE: [&str; 7] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onload='alert(1)",
    "]]></style><svg onload=alert(1)>",
    "\u{202e}gpj.exe\u{0}\u{1b}[2J\u{7}",
    "&lt;b&gt;&#0;",
    "--></title><h1>",
];

#[test]
fn texts_of_a_peer_stay_texts() {
    let (usual, figures) = drawn(&spoken("x", "x"), &about());
    let tags = |page: &str| page.matches('<').count();
    for text in HOSTILE {
        let long = text.repeat(400);
        for text in [text, &long] {
            let evidence = spoken(text, text);
            let hostile =
                About { target: text.to_owned(), address: text.to_owned(), local: text.to_owned(), ..about() };
            let (page, plots) = drawn(&evidence, &hostile);
            assert_eq!(tags(&page), tags(&usual), "{text}");
            // A single quote may stay: it ends no attribute of ours.
            assert!(text.starts_with('\'') || !page.contains(text), "{text}");
            assert!(!page.chars().any(|c| c.is_control() && c != '\n'), "{text}");
            assert!(page.len() < usual.len() + 40 * 8 * 1000, "a long text is cut");
            for (plot, usual) in plots.iter().zip(&figures) {
                assert_eq!(elements(&plot.file()), elements(&usual.file()), "{text}");
            }
            let lines = text::lines(&Report::new(&evidence, &hostile));
            assert!(!lines.iter().any(|line| line.chars().any(char::is_control)), "{text}");
        }
    }
}

/// Returns evidence in which every text of the peer is this one. `name` is that of a setting.
fn spoken(text: &str, name: &str) -> Evidence {
    let mut evidence = policed();
    for host in [&mut evidence.near, &mut evidence.far] {
        (host.kernel, host.sterna) = (text.to_owned(), text.to_owned());
        host.settings.insert(name.to_owned(), text.to_owned());
    }
    for record in &mut evidence.records {
        if let Outcome::Flow(pair) = &mut record.outcome {
            for stream in pair.sender.streams.iter_mut().chain(&mut pair.receiver.streams) {
                (stream.congestion, stream.error) = (text.to_owned(), Some(text.to_owned()));
            }
        }
    }
    let last = evidence.records.len() - 1;
    evidence.records[last].outcome = Outcome::Failed(text.to_owned());
    evidence
}
