//! `sterna doctor case`: a case in a directory, with real examinations of an agent on loopback.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::site::{Agent, BINARY, Site};

/// Case of a test, with the state of its client.
struct TestCase<'a> {
    site: &'a Site,
    directory: PathBuf,
}

impl<'a> TestCase<'a> {
    /// Opens a case about these targets.
    fn new(site: &'a Site, targets: &[&str]) -> Self {
        let case = Self { site, directory: site.local().join("tigo") };
        let targets = targets.iter().flat_map(|target| ["--target", target]);
        let flags: Vec<&str> = targets.chain(["--title", "TIGO to JIVE"]).collect();
        let output = case.run("new", &flags);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        case
    }

    fn command(&self, name: &str, flags: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(["doctor", "case", name]).arg(&self.directory).args(flags);
        command.env("STERNA_STATE", self.site.local().join("state")).env("USER", "ann");
        command
    }

    fn run(&self, name: &str, flags: &[&str]) -> Output {
        self.command(name, flags).output().unwrap()
    }

    /// Runs a command that succeeds, and returns its output.
    fn says(&self, name: &str, flags: &[&str]) -> String {
        let output = self.run(name, flags);
        assert!(output.status.success(), "{name} {flags:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that fails with this code, and returns its message.
    fn fails(&self, code: i32, name: &str, flags: &[&str]) -> String {
        let output = self.run(name, flags);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{name} {flags:?}: {said}");
        said
    }

    fn entries(&self) -> PathBuf {
        self.directory.join("case.jsonl")
    }

    fn bundles(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(self.directory.join("bundles")).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }
}

/// Returns the flags of a short examination.
fn short(agent: &Agent) -> Vec<&str> {
    vec!["--trust", &agent.fingerprint, "--time", "10s", "--max-rate", "20Mbit"]
}

#[test]
fn notes_and_facts_are_in_the_report_in_order_of_time() {
    let site = Site::new();
    let case = TestCase::new(&site, &["sterna://jive.example.org", "sterna://jive.example.org/", "sterna://switch"]);
    case.says("note", &["asked REUNA"]);
    case.says("note", &["TIGO has a limit", "--at", "2006-08-22 14:30", "--by", "jose@reuna"]);
    case.says("fact", &["--domain", "redclara.net", "rate_limit=90Mbit", "burst=64KB", "--at", "2006-08-23"]);
    case.says("fact", &["--domain", "redclara.net", "rate_limit=155Mbit", "queue=1000 packets"]);
    let mut note = case.command("note", &["-"]).stdin(Stdio::piped()).spawn().unwrap();
    note.stdin.take().unwrap().write_all("two lines\n<b>of text</b>\n".as_bytes()).unwrap();
    assert!(note.wait().unwrap().success());
    let list = case.says("list", &[]);
    let at = |text: &str| list.find(text).unwrap_or_else(|| panic!("{text} in {list}"));
    assert!(at("2006-08-22 14:30") < at("redclara.net: burst = 64.0 kB") && at("burst") < at("TIGO to JIVE"), "{list}");
    assert!(list.contains("TIGO has a limit  (jose@reuna)") && list.contains("(ann@"), "{list}");
    let page = site.local().join("tigo.html");
    let report = case.says("report", &["--html", &page.display().to_string()]);
    for said in [
        "sterna://switch/ no examination yet",
        "redclara.net: rate_limit = 155 Mbit/s",
        "before: 90.0 Mbit/s  (since 2006-08-23",
        "two lines  (ann@",
    ] {
        assert!(report.contains(said), "{said} in {report}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("&lt;b&gt;of text&lt;/b&gt;") && !page.contains("<b>of text"), "{page}");
    let json: Value = serde_json::from_str(&case.says("report", &["--json"])).unwrap();
    assert_eq!(json["targets"], serde_json::json!(["sterna://jive.example.org/", "sterna://switch/"]));
    assert_eq!(json["facts"][0]["values"][1]["value"], 155_000_000);
    assert_eq!(json["closed"], Value::Null);
    case.says("close", &["upgraded to 310 Mbit/s"]);
    assert!(case.says("report", &[]).contains("closed 2"), "the state of the case");
}

#[test]
fn wrong_commands_leave_the_case_as_it_is() {
    let site = Site::new();
    let case = TestCase::new(&site, &["sterna://jive.example.org"]);
    let before = fs::read(case.entries()).unwrap();
    let long = "x".repeat(40_000);
    for (name, flags, code, expected) in [
        ("new", &["--target", "sterna://x", "--title", "y"][..], 74, "has the case \"TIGO to JIVE\" already"),
        ("new", &["--target", "ftp://x", "--title", "y"], 2, "sterna://"),
        ("note", &[" "], 2, "the text is empty"),
        ("note", &["x", "--at", "22/08/06"], 2, "expected a date"),
        ("note", &[&long], 2, "40000 bytes, of at most 32768"),
        ("fact", &["--domain", "x", "rate_limit=fast"], 2, "expected a number and a unit of bits"),
        ("fact", &["--domain", " ", "mtu=1500"], 2, "names no network"),
        ("run", &["--target", "sterna://other"], 2, "is no target of the case"),
        ("retest", &[], 2, "no examination to compare with"),
        ("retest", &["--since", "20260101T000000Z"], 2, "has no examination 20260101T000000Z"),
        ("retest", &["--since", "../../x"], 2, "expected the name of an examination"),
        ("retest", &["--limit", "wizard"], 2, "expected the name of a limit"),
        ("add", &["/dev/null"], 74, "no bundle of the doctor"),
    ] {
        let said = case.fails(code, name, flags);
        assert!(said.contains(expected), "{name} {flags:?}: {said}");
        assert_eq!(fs::read(case.entries()).unwrap(), before, "{name} {flags:?}");
    }
    let other = TestCase { site: &site, directory: site.local() };
    assert!(other.fails(74, "list", &[]).contains("is no case"));
    assert!(!site.local().join("case.jsonl").exists());
}

#[test]
fn an_entry_that_was_confirmed_survives_every_kill() {
    let site = Site::new();
    let case = TestCase::new(&site, &["sterna://jive.example.org"]);
    let mut confirmed = Vec::new();
    for round in 0..10 {
        let names: Vec<String> = (0..8).map(|index| format!("note-{round}-{index}.")).collect();
        let mut children: Vec<_> =
            names.iter().map(|name| case.command("note", &[name]).stderr(Stdio::null()).spawn().unwrap()).collect();
        for child in children.iter_mut().step_by(2) {
            child.kill().unwrap();
        }
        for (child, name) in children.iter_mut().zip(names) {
            if child.wait().unwrap().success() {
                confirmed.push(name);
            }
        }
    }
    assert!(confirmed.len() >= 40, "{confirmed:?}");
    // A crash of the host in the middle of a write.
    let torn = fs::read(case.entries()).unwrap();
    fs::write(case.entries(), [&torn, &br#"{"time":"2026-11-25T22:12:00Z","by":"ann","ki"#[..]].concat()).unwrap();
    case.says("note", &["after the crash"]);
    let output = case.run("list", &[]);
    let (list, problems) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    for name in confirmed.iter().map(String::as_str).chain(["after the crash"]) {
        assert_eq!(list.matches(name).count(), 1, "{name} in {list}");
    }
    assert_eq!(problems.lines().filter(|line| line.contains("of the case: ")).count(), 1, "{problems}");
    assert!(case.says("report", &[]).contains("the line is no entry"));
}

#[test]
fn a_retest_answers_for_the_limits_of_an_earlier_examination() {
    let site = Site::new();
    let agent = site.agent();
    let case = TestCase::new(&site, &[&agent.url("")]);
    case.says("fact", &["--domain", "here", "rate_limit=1Tbit"]);
    let first = case.says("run", &short(&agent));
    assert!(first.starts_with(&agent.url("")) && first.contains("\n1. "), "{first}");
    assert!(first.contains("here states a rate limit of 1.00 Tbit/s") && !first.contains("changes since"), "{first}");
    let again = case.says("run", &short(&agent));
    assert!(again.contains("changes since 2") && again.contains("A to B, one connection: "), "{again}");
    add_limits_of_long_ago(&case);
    let since = ["--since", "20200101T000000Z"];
    let output = case.run("retest", &[&short(&agent), &since[..], &["--claim", "it was lifted"]].concat());
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("policer, A to B: gone: it was at 100 kbit/s"), "{said}");
    assert!(said.contains("shaper, A to B: not decided: it was at 1.00 Tbit/s"), "{said}");
    assert!(said.contains("\nnot confirmed: it was lifted"), "{said}");
    let one = ["--limit", "policer", "--direction", "up", "--json"];
    let gone = case.says("retest", &[&short(&agent), &since[..], &one].concat());
    let json: Value = serde_json::from_str(&gone).unwrap();
    let retest = &json["retest"];
    assert_eq!((&retest["is_met"], &retest["since"]), (&true.into(), &since[1].into()), "{gone}");
    assert!(matches!(retest["limits"][0]["fate"].as_str(), Some("gone" | "replaced")), "{gone}");
    assert_eq!(json["changes"], Value::Null, "its bundle is not there");
    let nothing = case.fails(2, "retest", &[&short(&agent), &since[..], &["--direction", "down"]].concat());
    assert!(nothing.contains("the examination 20200101T000000Z has no such limit"), "{nothing}");
    uses_no_bundle_that_was_changed(&case);
}

/// Adds an entry of an examination whose bundle is lost: a limit far below what loopback carries, and one far above.
fn add_limits_of_long_ago(case: &TestCase<'_>) {
    let text = fs::read_to_string(case.entries()).unwrap();
    let mut entry: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    entry["time"] = "2020-01-01T00:00:00Z".into();
    entry["id"] = "20200101T000000Z".into();
    let limit = |limit: &str, bps: u64| {
        serde_json::json!({
            "limit": limit, "direction": "forward", "predicted_bps": bps, "limits_to_bps": bps, "rate_bps": bps,
            "confidence": 0.9, "remedy": "ask",
        })
    };
    entry["limits"] = [limit("policer", 100_000), limit("shaper", 1_000_000_000_000)].into();
    fs::write(case.entries(), format!("{text}{entry}\n")).unwrap();
}

/// Changes bundles of a case with four examinations, removes one, and checks the report; then adds that one again.
fn uses_no_bundle_that_was_changed(case: &TestCase<'_>) {
    let page = case.site.local().join("page.html").display().to_string();
    let report = case.says("report", &["--html", &page]);
    assert!(report.contains("claim: it was lifted") && !report.contains("not used: "), "{report}");
    assert!(report.contains("bundle 20200101T000000Z: missing: the numbers are those of the entry"), "{report}");
    assert!(fs::read_to_string(&page).unwrap().contains("history-1-forward"));
    let bundles = case.bundles();
    assert_eq!(bundles.len(), 4, "{bundles:?}");
    let text = fs::read_to_string(&bundles[0]).unwrap();
    fs::write(&bundles[0], text.replacen("127.0.0.1", "127.0.0.2", 1)).unwrap();
    let already = case.fails(74, "add", &[&bundles[2].display().to_string()]);
    assert!(already.contains("already"), "{already}");
    let report = case.says("report", &[]);
    assert!(report.contains("not used: ") && report.contains("was changed after"), "{report}");
    // An entry that was lost: its bundle is named, and comes back under its name.
    let entries = fs::read_to_string(case.entries()).unwrap();
    let kept: Vec<&str> = entries.lines().filter(|line| !line.contains("it was lifted")).collect();
    fs::write(case.entries(), format!("{}\n", kept.join("\n"))).unwrap();
    assert!(case.says("report", &[]).contains("no entry names it"));
    case.says("add", &[&bundles[2].display().to_string()]);
    assert!(!case.says("report", &[]).contains("no entry names it"));
    assert_eq!(case.bundles(), bundles);
}
