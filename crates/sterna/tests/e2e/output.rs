//! Tests output: lost output, exit codes of failures on this host, and error texts with reasons.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::site::{Agent, BINARY, Outcome, Site, wait_until};
use crate::tree::{MIB, Seeded, assert_same_file, write};

/// Returns the binary with an output that refuses all data, like a full disk.
fn with_broken(output: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$0\" \"$@\" {output}/dev/full"), BINARY]);
    command
}

#[test]
fn an_agent_whose_log_is_gone_serves_on() {
    let site = Site::new();
    write(&site.local().join("f"), &Seeded::new(1).bytes(2 * MIB));
    let root = site.root();
    let flags = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()];
    let mut agent = site.agent_by(with_broken("2>"), "127.0.0.1:0", &flags);
    for via in ["tcp", "quic"] {
        site.copy(&agent).args(["--via", via, "f"]).arg(agent.url(via)).succeed();
        assert_same_file(&site.local().join("f"), &root.join(via));
        // A message for the user too.
        site.copy(&agent).args(["--via", via]).arg(agent.url("missing")).arg("m").run().expect(3);
    }
    assert!(agent.is_alive());
}

#[test]
fn a_copy_whose_output_is_lost_is_finished_and_says_so() {
    let site = Site::new();
    let agent = site.agent();
    for name in ["f", "g"] {
        write(&site.local().join(name), &Seeded::new(2).bytes(MIB));
    }
    for (output, to) in [(">", "stdout/"), ("2>", "stderr/")] {
        let copy = |sources: &[&str]| {
            let mut copy = site.copy_by(with_broken(output));
            copy.args(["-v", "--trust", &agent.fingerprint]).args(sources).arg(agent.url(to)).run()
        };
        // Requested output is missing, so a script must not see success.
        let finished = copy(&["f", "g"]).expect(if output == ">" { 74 } else { 0 });
        if output == ">" {
            finished.says("write to standard output");
        }
        copy(&["f", "missing"]).expect(1);
        assert_same_file(&site.local().join("g"), &site.root().join(to).join("g"));
    }
}

#[test]
fn a_copy_whose_output_nobody_reads_is_finished_with_its_own_code() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), &Seeded::new(2).bytes(MIB));
    // The reader exits before the copy writes anything.
    let mut gone = Command::new("bash");
    gone.args(["-c", "exec 3> >(true); wait $!; exec \"$0\" \"$@\" >&3", BINARY]);
    site.copy_by(gone).args(["-v", "--trust", &agent.fingerprint, "f"]).arg(agent.url("f")).run().expect(0);
    assert_same_file(&site.local().join("f"), &site.root().join("f"));
}

#[test]
fn one_interrupt_ends_a_copy_whose_reader_does_not_read() {
    let site = Site::new();
    let agent = site.agent();
    for number in 0..2000 {
        write(&site.local().join(format!("d/{number}")), b"bytes");
    }
    write(&site.local().join("d/large"), &Seeded::new(3).bytes(32 * MIB));
    let fifo = site.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let unread = File::options().read(true).write(true).open(&fifo).unwrap();
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("exec \"$0\" \"$@\" >{}", fifo.display())).arg(BINARY);
    let mut copy = site.copy_by(command);
    let mut copying = copy.args(["--trust", &agent.fingerprint, "--rate", "10Mbit", "d"]).arg(agent.url("")).start();
    let has_room = || {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&unread, PollFlags::OUT)], Some(&at_once)).unwrap() > 0
    };
    wait_until("a full pipe", || !has_room());
    copying.interrupt();
    wait_until("the end of the copy", || copying.has_ended());
    copying.finish().expect(130);
}

#[test]
fn what_goes_wrong_on_this_host_is_no_wrong_usage() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), b"bytes");
    let push = || site.copy(&agent).arg("f").arg(agent.url("f")).run();
    push().expect(0);
    let identity = site.path("client-state/identity.pem");
    fs::set_permissions(&identity, fs::Permissions::from_mode(0o644)).unwrap();
    push().expect(74).says("make it 600");
    fs::set_permissions(&identity, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(site.path("client-state/known_hosts"), "nonsense\n").unwrap();
    push().expect(74).says("known_hosts line 1");
    fs::remove_dir_all(site.path("client-state")).unwrap();
    fs::write(site.path("client-state"), "no directory").unwrap();
    push().expect(74).says("client-state");
}

#[test]
fn an_agent_that_cannot_start_blames_its_own_host() {
    let site = Site::new();
    let agent = site.agent();
    let (root, missing) = (site.root(), site.path("missing"));
    let read_only = format!("{}:ro", missing.display());
    let file = site.path("file");
    fs::write(&file, "").unwrap();
    // Reason for 127.7.7.7: a test that runs at the same time can use this port number of 127.0.0.1 for TCP.
    let udp = std::net::UdpSocket::bind("127.7.7.7:0").unwrap();
    let (tcp_taken, udp_taken) = (agent.addr.to_string(), udp.local_addr().unwrap().to_string());
    let any = "--authorize-any";
    for (root, listen, who, code, words) in [
        (root.as_os_str(), tcp_taken.as_str(), any, 74, "listen on TCP"),
        (root.as_os_str(), udp_taken.as_str(), any, 74, "listen on UDP"),
        (missing.as_os_str(), "127.0.0.1:0", any, 74, "missing"),
        (read_only.as_ref(), "127.0.0.1:0", any, 74, "missing"),
        (file.as_os_str(), "127.0.0.1:0", any, 74, "Not a directory"),
        (root.as_os_str(), "127.0.0.1:0", "--authorize=/nowhere/authorized", 74, "/nowhere/authorized"),
        ("=x".as_ref(), "127.0.0.1:0", any, 2, "a root needs a name"),
        (root.as_os_str(), "localhost", any, 2, "such as 127.0.0.1:7373"),
    ] {
        let mut command = Command::new(BINARY);
        command.args(["agent", "--listen", listen, "--state"]).arg(site.path("other-state")).arg(who);
        let output = command.arg("--root").arg(root).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(words), "{}: {said}", output.status);
    }
}

#[test]
fn the_root_of_an_agent_is_not_called_as_the_root_of_a_file_system() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), b"bytes");
    site.copy(&agent).args(["--dry-run", "f"]).arg(agent.url("")).succeed();
    site.copy(&agent).arg("f").arg(agent.url("")).succeed();
    let missing = site.copy(&agent).arg(agent.url("missing")).arg("m").run().expect(3);
    missing.says("look for missing in the agent's root");
    for words in [": dry run of a push to the agent's root", ": would copy f", ": push to the agent's root", ": done f"]
    {
        agent.wait_for_log(words);
    }
    let log = fs::read_to_string(&agent.log).unwrap();
    assert!(!log.contains(" in /:") && !log.contains("push to \"\""), "{log}");
}

#[test]
fn the_log_of_an_agent_names_its_session_and_its_lanes_only_when_asked() {
    let site = Site::new();
    write(&site.local().join("f"), &Seeded::new(1).bytes(2 * MIB));
    let root = format!("in={}", site.root().display());
    let flags = ["--root".as_ref(), root.as_ref(), "--authorize-any".as_ref()];
    for (more, lanes_logged) in [(None, false), (Some("-v".as_ref()), true)] {
        fs::remove_file(site.path("agent.log")).ok();
        let agent = site.agent_with("127.0.0.1:0", &flags.into_iter().chain(more).collect::<Vec<_>>());
        let mut copy = site.copy(&agent);
        copy.args(["--via", "tcp", "--lanes", "1", "--overwrite", "always"]);
        copy.args(["f", "missing"]).arg(agent.url("in/to/")).run().expect(1);
        agent.wait_for_log(" in ");
        agent.wait_for_log(": over: 1 file, 2.10 MB in ");
        let log = fs::read_to_string(&agent.log).unwrap();
        let names: Vec<&str> = log.lines().filter_map(|line| line.split_once(": ")).map(|(name, _)| name).collect();
        assert!(names[0].starts_with("session ") && names.iter().all(|name| *name == names[0]), "{log}");
        let first = log.lines().next().unwrap();
        assert!(first.contains(": push to \"in/to/\", by SHA256:") && first.contains(" at 127.0.0.1:"), "{log}");
        assert!(log.lines().any(|line| line.contains(": over: ") && line.ends_with("goodput), 1 failed")), "{log}");
        assert_eq!(log.contains(": lane 0 is up: tcp from 127.0.0.1:"), lanes_logged, "{log}");
        assert_eq!(log.lines().any(|line| line.contains("lane")), lanes_logged, "{log}");
    }
}

#[test]
fn every_json_line_of_a_session_has_its_peer_and_its_path() {
    let site = Site::new();
    write(&site.local().join("f"), b"bytes");
    let root = site.root();
    let flags = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()];
    let more = ["--log-format=json".as_ref(), "--log-level=debug".as_ref()];
    let agent = site.agent_with("127.0.0.1:0", &[&flags[..], &more].concat());
    site.copy(&agent).arg("f").arg(agent.url("to/")).succeed();
    agent.wait_for_log("over: 1 file");
    let log = fs::read_to_string(&agent.log).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_session: Vec<_> = lines.iter().filter(|line| !line["session"].is_null()).collect();
    for line in &of_session {
        let fields = (&line["session"], &line["peer"], line["path"].as_str(), line["request"].as_str());
        assert_eq!(fields, (&of_session[0]["session"], &of_session[0]["peer"], Some("to/"), Some("push")), "{log}");
        assert!(line["time"].as_str().unwrap().ends_with('Z'), "{log}");
    }
    let found = |level: &str, message: &str| {
        of_session.iter().any(|line| line["level"] == level && line["message"].as_str().unwrap().starts_with(message))
    };
    assert!(found("info", "done f") && found("debug", "lane 0 is up") && found("info", "over: 1 file"), "{log}");
}

#[test]
fn a_command_in_the_lab_has_both_outputs_for_itself() {
    if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/net/tun").exists() {
        println!("skipped: the lab needs root and /dev/net/tun");
        return;
    }
    let site = Site::new();
    let run = |more: &[&str]| {
        let name = format!("e2e-outputs-{}", std::process::id());
        let mut command = Command::new(BINARY);
        command.args(["lab", "run", "--rtt", "1ms", "--name", &name]).args(more).args(["--", "sh", "-c"]);
        command.arg("echo out; echo err >&2; exit 7").current_dir(site.local()).output().unwrap()
    };
    for more in [&[][..], &["--counters", "counters.json"]] {
        let output = run(more);
        assert_eq!(
            (output.status.code(), &output.stdout[..], &output.stderr[..]),
            (Some(7), &b"out\n"[..], &b"err\n"[..])
        );
    }
    let counters = fs::read(site.local().join("counters.json")).unwrap();
    assert!(serde_json::from_slice::<serde_json::Value>(&counters).unwrap()["elapsed_s"].is_number());
}

#[test]
fn a_bad_line_of_the_agents_list_is_said_in_its_log_and_to_nobody_else() {
    let site = Site::new();
    write(&site.local().join("f"), b"bytes");
    let authorize = site.path("authorize");
    fs::write(&authorize, "").unwrap();
    let root = site.root();
    let flags = ["--root".as_ref(), root.as_os_str(), "--authorize".as_ref(), authorize.as_os_str()];
    let agent = site.agent_with("127.0.0.1:0", &flags);
    fs::write(&authorize, "nonsense\n").unwrap();
    let pushed = site.copy(&agent).arg("f").arg(agent.url("f")).run().expect(6);
    pushed.says("is not authorized here");
    assert!(!pushed.text().contains("nonsense"), "the list is nobody's business");
    agent.wait_for_log("authorize line 1");
}

#[test]
fn flags_that_cannot_work_are_refused_with_the_reason() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), b"bytes");
    for lanes in ["1", "8"] {
        let small = ["--via", "quic", "--lanes", lanes, "--memory", "1MiB", "f"];
        site.copy(&agent).args(small).arg(agent.url("f")).run().expect(2).says("--memory");
    }
    let upward = agent.url("a/../f");
    site.copy(&agent).arg(&upward).arg("g").run().expect(2).says("a/../f").says("..");
    // Not a failure, but reported even without -v.
    let pushed = site.copy(&agent).args(["--via", "tcp", "--congestion", "nosuch", "f"]).arg(agent.url("f")).succeed();
    assert!(pushed.last("notice")["text"].as_str().unwrap().contains("nosuch"));
}

#[test]
fn a_dry_run_counts_files_and_no_directories() {
    let site = Site::new();
    let agent = site.agent();
    for name in ["tree/a", "tree/deep/b", "tree/deep/c"] {
        write(&site.local().join(name), name.as_bytes());
    }
    let run = |dry: &[&str]| {
        let mut summary = site.copy(&agent).args(dry).arg("tree").arg(agent.url("to/")).succeed().summary().clone();
        // The dry run also reports the plan.
        assert_eq!(summary.as_object_mut().unwrap().remove("plan").is_some(), dry == ["--dry-run"]);
        summary
    };
    let would = |copy: [u64; 2], up_to_date: [u64; 2]| {
        serde_json::json!({
            "event": "summary", "failed": 0,
            "would_copy": copy[0], "bytes": copy[1], "up_to_date": up_to_date[0], "bytes_up_to_date": up_to_date[1],
        })
    };
    // No fields of a transfer, which did not happen: no time, no goodput.
    assert_eq!(run(&["--dry-run"]), would([3, 28], [0, 0]));
    run(&[]);
    assert_eq!(run(&["--dry-run"]), would([0, 0], [3, 28]));
    let summary = run(&[]);
    assert_eq!((&summary["copied"], &summary["up_to_date"]), (&0.into(), &3.into()));
}

#[test]
fn what_was_up_to_date_is_not_counted_among_the_bytes_of_an_earlier_run() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("t/old"), &Seeded::new(3).bytes(2 * MIB));
    let push = || site.copy(&agent).arg("t/.").arg(agent.url("t/")).succeed();
    push();
    let pull = || site.copy(&agent).arg(agent.url("t/.")).arg("back/").succeed();
    let check = |outcome: Outcome| {
        let summary = outcome.summary();
        assert_eq!((&summary["bytes"], &summary["bytes_up_to_date"]), (&MIB.into(), &(2 * MIB).into()));
        assert_eq!(summary["bytes_held"], 0, "{summary}");
        assert!(summary["goodput_bps"].as_u64() > Some(0), "{summary}");
    };
    pull();
    write(&site.local().join("t/new"), &Seeded::new(4).bytes(MIB));
    check(push());
    check(pull());
}

/// Returns the messages to the user: stderr of a copy without `--json`.
fn words(site: &Site, agent: &Agent, args: &[&str]) -> String {
    let mut command = Command::new(BINARY);
    command.args(["copy", "--trust", &agent.fingerprint, "--state"]).arg(site.path("client-state")).args(args);
    let output = command.current_dir(site.local()).output().unwrap();
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn decisions_and_lanes_are_told_in_words_for_people() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), b"bytes");
    for via in ["tcp", "quic"] {
        let said = words(&site, &agent, &["-v", "--via", via, "f", &agent.url(via)]);
        assert!(said.contains(&format!("transport: {via}, as given\n")), "{said}");
        assert!(said.contains(&format!(" is up: {via} to {}\n", agent.addr)), "{said}");
        assert!(said.contains("\nlanes: ") && !said.contains("lanes: 1 lane"), "{said}");
    }
}

#[test]
fn a_lane_counts_as_up_when_the_agent_has_welcomed_it() {
    let site = Site::new();
    let authorize = site.path("authorize");
    fs::write(&authorize, "").unwrap();
    write(&site.local().join("f"), b"bytes");
    let root = site.root();
    let flags = ["--root".as_ref(), root.as_os_str(), "--authorize".as_ref(), authorize.as_os_str()];
    let agent = site.agent_with("127.0.0.1:0", &flags);
    for via in ["tcp", "quic"] {
        let refused = site.copy(&agent).args(["--via", via, "f"]).arg(agent.url("f")).run().expect(6);
        assert_eq!(refused.count("lane_up"), 0, "{}", refused.describe());
    }
}

#[test]
fn failures_alike_are_told_to_people_five_times_and_to_programs_each() {
    let site = Site::new();
    let agent = site.agent();
    for index in 0..40 {
        write(&site.local().join(format!("t/f{index}")), b"new");
        write(&site.root().join(format!("t/f{index}")), b"old");
    }
    let flags = ["--overwrite", "never", "t/."];
    let outcome = site.copy(&agent).args(flags).arg(agent.url("t/")).run().expect(4);
    assert_eq!(outcome.count("file"), 40, "{}", outcome.describe());
    let url = agent.url("t/");
    let lines = |more: &[&str]| {
        let said = words(&site, &agent, &[more, &flags, &[&url]].concat());
        let told = said.lines().filter(|line| line.starts_with('f')).count();
        (told, said.contains("\n35 more failed in the same way"), said.contains("40 files failed"))
    };
    assert_eq!(lines(&[]), (5, true, true));
    assert_eq!(lines(&["--verbose"]), (40, false, true));
    assert_eq!(lines(&["--quiet"]), (5, true, false));
}

#[test]
fn what_cannot_be_copied_says_why_and_what_to_do() {
    let site = Site::new();
    let agent = site.agent();
    symlink("nowhere", site.local().join("dangling")).unwrap();
    write(&site.local().join("d/f"), b"bytes");
    symlink(".", site.local().join("d/around")).unwrap();
    write(&site.local().join("d/.sterna-mine"), b"bytes");
    let push = |source: &str| site.copy(&agent).arg(source).arg(agent.url("to/")).run();
    push("dangling").expect(3).says("dangling in the current directory is a symlink whose target does not exist");
    push("d/.sterna-mine").expect(3).says("our unfinished files; give it another name");
    let tree = push("d").expect(1);
    tree.says("d/around is a symlink to a directory").says("name it as a source").says("d/.sterna-mine is not copied");
    assert_eq!((&tree.summary()["copied"], &tree.summary()["failed"]), (&1.into(), &2.into()));
}

#[test]
fn a_log_never_empties_what_is_no_log() {
    let site = Site::new();
    let agent = site.agent();
    for name in ["x.h5", "y.h5"] {
        write(&site.local().join(name), &Seeded::new(3).bytes(100_000));
    }
    write(&site.local().join("notes.jsonl"), b"{\"event\":\"lunch\"}\n");
    write(&site.local().join("empty"), b"");
    let log = |log: &str, source: &str| site.copy(&agent).args(["--log", log, source]).arg(agent.url("to/")).run();
    for (taken, source) in [("x.h5", "x.h5"), ("x.h5", "y.h5"), ("notes.jsonl", "y.h5"), ("empty", "empty")] {
        let before = fs::read(site.local().join(taken)).unwrap();
        let refused = log(taken, source).expect(2);
        refused.says("it was left as it is and nothing was sent").says(taken);
        assert_eq!(refused.last("error")["error"]["kind"], "usage");
        assert_eq!(fs::read(site.local().join(taken)).unwrap(), before, "{taken}");
    }
    assert!(!site.root().join("to").exists());
    // An empty file and a log of an earlier copy are overwritten. Such a log stays if the copy has it as its source.
    for name in ["empty", "log.jsonl", "log.html"] {
        for _ in 0..2 {
            log(name, "y.h5").expect(0);
        }
        let written = fs::read_to_string(site.local().join(name)).unwrap();
        assert_eq!(written.matches("\"session\"").count() + written.matches("<!doctype").count(), 1, "{written}");
        log(name, name).expect(2).says("this is what is to be copied");
    }
}

#[test]
fn a_log_to_a_pipe_is_refused_and_waits_for_nobody() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), b"bytes");
    assert!(Command::new("mkfifo").arg(site.local().join("fifo")).status().unwrap().success());
    site.copy(&agent).args(["--log", "fifo", "f"]).arg(agent.url("f")).run().expect(2).says("this is a pipe");
    site.copy(&agent).args(["--log", ".", "f"]).arg(agent.url("f")).run().expect(2).says("this is a directory");
    assert!(!site.root().join("f").exists());
    site.copy(&agent).args(["--log", "/dev/null", "f"]).arg(agent.url("f")).succeed();
}

#[test]
fn json_ends_with_the_error_however_early_that_is() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), b"bytes");
    for (args, code) in [(["--log", "/nonexistent/x"], 74), (["--state", "/proc/x"], 74), (["--rate-min", "1bit"], 2)] {
        let mut copy = Command::new(BINARY);
        copy.args(["copy", "--json"]).args(args).args(["--via", "tcp", "f"]).arg(agent.url("f"));
        let output = copy.current_dir(site.local()).env("XDG_STATE_HOME", site.path("xdg")).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        let last: serde_json::Value = serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap();
        assert_eq!((&last["event"], &last["exit_code"]), (&"error".into(), &code.into()), "{said}");
    }
}
