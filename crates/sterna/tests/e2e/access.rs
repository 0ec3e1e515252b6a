//! Tests access: which peers connect, what they read and write, and that no file path leaves its root.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use crate::site::{Agent, BINARY, Outcome, Site, held_to_modes};
use crate::tree::{MIB, Seeded, write};

/// Returns the fingerprint that `sterna id` prints for the client of `site`.
fn client_fingerprint(site: &Site) -> String {
    let state = site.path("client-state");
    let said = Command::new(env!("CARGO_BIN_EXE_sterna")).args(["id", "--state"]).arg(state).output().unwrap();
    assert!(said.status.success());
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}

fn listed_agent(site: &Site, line: &str, roots: &[&str]) -> Agent {
    fs::write(site.path("authorize"), line).unwrap();
    let authorize = site.path("authorize");
    let mut flags: Vec<&OsStr> = vec!["--authorize".as_ref(), authorize.as_os_str()];
    for root in roots {
        flags.extend([OsStr::new("--root"), OsStr::new(root)]);
    }
    site.agent_with("127.0.0.1:0", &flags)
}

fn push(site: &Site, agent: &Agent, to: &str) -> Outcome {
    site.copy(agent).args(["--overwrite", "always", "f"]).arg(agent.url(to)).run()
}

fn pull(site: &Site, agent: &Agent, from: &str) -> Outcome {
    site.copy(agent).args(["--overwrite", "always"]).arg(agent.url(from)).arg("pulled").run()
}

#[test]
fn a_client_is_let_in_by_its_line_and_out_when_that_goes() {
    let site = Site::new();
    write(&site.local().join("f"), b"bytes");
    let root = site.root().into_os_string().into_string().unwrap();
    let agent = listed_agent(&site, "# nobody yet\n", &[&root]);
    let ours = client_fingerprint(&site);
    let refused = push(&site, &agent, "a").expect(6);
    refused.says(&format!("sterna: {} reports: {ours} is not authorized here", agent.addr));
    assert!(refused.stderr.lines().any(|line| line == ours), "a line to paste: {}", refused.stderr);
    // The file is edited while the agent runs.
    fs::write(site.path("authorize"), format!("{ours}\n")).unwrap();
    push(&site, &agent, "a").expect(0);
    fs::write(site.path("authorize"), format!("{ours} ro\n")).unwrap();
    push(&site, &agent, "a").expect(4).says(&format!("{} reports: write to ", agent.addr)).says("not allowed");
    pull(&site, &agent, "a").expect(0);
    fs::write(site.path("authorize"), "").unwrap();
    push(&site, &agent, "a").expect(6).says("not authorized");
    pull(&site, &agent, "a").expect(6);
}

#[test]
fn while_the_list_is_damaged_the_one_before_stays_in_force() {
    let site = Site::new();
    write(&site.local().join("f"), b"bytes");
    let root = site.root().into_os_string().into_string().unwrap();
    let ours = client_fingerprint(&site);
    let agent = listed_agent(&site, &format!("{ours} ro\n"), &[&root]);
    fs::write(site.path("authorize"), "#\n\nnonsense\n").unwrap();
    for _ in 0..2 {
        let refused = push(&site, &agent, "a").expect(4);
        refused.says("not allowed");
        assert!(
            !refused.text().contains("nonsense") && !refused.text().contains("authorize"),
            "{}",
            refused.describe()
        );
    }
    let log = fs::read_to_string(&agent.log).unwrap();
    let told = log.lines().filter(|line| line.contains("authorize line 3") && line.contains("the file is not in use"));
    let (refusals, others): (Vec<&str>, Vec<&str>) = told.partition(|line| line.contains("refused "));
    assert_eq!((refusals.len(), others.len()), (1, 1), "{log}");
    fs::remove_file(site.path("authorize")).unwrap();
    push(&site, &agent, "a").expect(4).says("not allowed");
}

#[test]
fn named_roots_have_rights_of_their_own() {
    let site = Site::new();
    write(&site.local().join("f"), b"bytes");
    for name in ["in", "out", "closed"] {
        write(&site.root().join(name).join("there"), b"old");
    }
    let ours = client_fingerprint(&site);
    let place = |name: &str, ro: &str| format!("{name}={}{ro}", site.root().join(name).display());
    let roots = [place("in", ""), place("out", ":ro"), place("closed", "")];
    let line = format!("{ours} in=rw out=rw closed=none\n");
    let agent = listed_agent(&site, &line, &roots.each_ref().map(String::as_str));
    push(&site, &agent, "in/new").expect(0);
    pull(&site, &agent, "in/new").expect(0);
    // The root is read-only at the agent, whatever the line of the client allows.
    push(&site, &agent, "out/new").expect(4).says("read-only");
    pull(&site, &agent, "out/there").expect(0);
    push(&site, &agent, "closed/new").expect(4);
    pull(&site, &agent, "closed/there").expect(3);
    let elsewhere = push(&site, &agent, "elsewhere/new").expect(4);
    elsewhere.says("root \"elsewhere\" is not served here").says("open to you: in, out");
    assert!(!elsewhere.text().contains("closed"), "{}", elsewhere.describe());
    let nameless = site.copy(&agent).arg(agent.url("")).arg("all").run().expect(3);
    nameless.says("a path that names no root is not served here");
    let names = |root: &str| fs::read_dir(site.root().join(root)).unwrap().count();
    assert_eq!((names("in"), names("out"), names("closed")), (2, 1, 1));
}

#[test]
fn a_misspelt_root_stops_the_start_and_later_keeps_what_was_granted() {
    let site = Site::new();
    write(&site.local().join("f"), b"bytes");
    let ours = client_fingerprint(&site);
    let root = format!("incoming={}", site.root().display());
    fs::write(site.path("authorize"), format!("# ours\n{ours} incomming=rw\n")).unwrap();
    let mut start = Command::new(BINARY);
    start.args(["agent", "--listen", "127.0.0.1:0", "--root", &root, "--state"]).arg(site.path("agent-state"));
    let output = start.arg("--authorize").arg(site.path("authorize")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(74), "{said}");
    assert!(
        said.contains("authorize line 2") && said.contains("\"incomming\"") && said.contains("incoming\n"),
        "{said}"
    );

    let agent = listed_agent(&site, &format!("{ours} incoming=ro\n"), &[&root]);
    fs::write(site.path("authorize"), format!("{ours} incomming=rw\n")).unwrap();
    for _ in 0..2 {
        push(&site, &agent, "incoming/f").expect(4).says("not allowed to you");
    }
    let log = fs::read_to_string(&agent.log).unwrap();
    assert_eq!(log.matches("authorize line 1: rights for a root \"incomming\"").count(), 1, "{log}");
    fs::write(site.path("authorize"), format!("{ours} incoming=rw\n")).unwrap();
    push(&site, &agent, "incoming/f").expect(0);
}

#[test]
fn errors_name_a_root_as_clients_do_and_not_where_it_lies() {
    let site = Site::new();
    write(&site.local().join("f"), b"bytes");
    write(&site.root().join("file"), b"old");
    let place = site.root().into_os_string().into_string().unwrap();
    let ours = format!("{}\n", client_fingerprint(&site));
    let agents = [(format!("{place}:ro"), ""), (format!("named={place}:ro"), "named/"), (place.clone(), "")];
    for (root, prefix) in &agents {
        let agent = listed_agent(&site, &ours, &[root]);
        let wrong = [
            pull(&site, &agent, &format!("{prefix}none")),
            pull(&site, &agent, &format!("{prefix}no*")),
            push(&site, &agent, &format!("{prefix}file/beneath/f")),
        ];
        for outcome in wrong {
            assert!(matches!(outcome.code, Some(3 | 4)), "{}", outcome.describe());
            assert!(!outcome.text().contains(&place), "{}", outcome.describe());
        }
    }
}

#[test]
fn what_goes_wrong_on_the_disk_of_an_agent_does_not_say_where_its_root_lies() {
    let site = Site::new();
    write(&site.local().join("small"), b"bytes");
    write(&site.local().join("large"), &Seeded::new(1).bytes(2 * MIB));
    write(&site.root().join("closed/secret"), b"secret");
    write(&site.root().join("file"), b"old");
    for (directory, mode) in [("closed", 0o000), ("kept", 0o555)] {
        fs::create_dir_all(site.root().join(directory)).unwrap();
        fs::set_permissions(site.root().join(directory), fs::Permissions::from_mode(mode)).unwrap();
    }
    // A file system of 1 MiB beneath the root, if this test has the permission to mount.
    fs::create_dir(site.root().join("full")).unwrap();
    let mount = |verb: &str, args: &[&str]| {
        Command::new(verb).args(args).arg(site.root().join("full")).output().is_ok_and(|said| said.status.success())
    };
    let is_mounted = mount("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs"]);
    let place = site.root().into_os_string().into_string().unwrap();
    let flags: [&OsStr; 3] = ["--root".as_ref(), place.as_ref(), "--authorize-any".as_ref()];
    let agent = site.agent_by(held_to_modes(), "127.0.0.1:0", &flags);
    let says_nothing = |outcome: Outcome| {
        assert!(matches!(outcome.code, Some(1 | 3 | 4)), "{}", outcome.describe());
        let text = outcome.text();
        let is_of_the_disk = text.contains("(os error ") || text.contains(" are free");
        assert!(!text.contains(&place) && is_of_the_disk, "{}", outcome.describe());
    };
    let push = |what: &str, to: &str| site.copy(&agent).arg(what).arg(agent.url(to)).run();
    for what in ["small", "large"] {
        says_nothing(push(what, "kept/f"));
        says_nothing(push(what, "kept/new/f"));
        says_nothing(push(what, "closed/f"));
        says_nothing(push(what, "file/f"));
    }
    for source in ["closed/secret", "closed", "none"] {
        says_nothing(pull(&site, &agent, source));
    }
    if is_mounted {
        let full = push("large", "full/f");
        assert!(mount("umount", &[]));
        says_nothing(full);
    }
    fs::set_permissions(site.root().join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::remove_dir_all(site.root()).unwrap();
    for what in ["small", "large"] {
        says_nothing(push(what, "f"));
    }
    says_nothing(pull(&site, &agent, "file"));
}

#[test]
fn no_path_of_a_client_leaves_the_root() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), b"bytes");
    write(&site.path("outside/secret"), b"secret");
    symlink(site.path("outside"), site.root().join("absolute")).unwrap();
    symlink("../outside", site.root().join("upward")).unwrap();
    symlink("../outside/secret", site.root().join("file")).unwrap();
    let absolute = site.path("outside/secret").into_os_string().into_string().unwrap();
    for path in ["../outside/secret", "x/../../outside/secret", "absolute/secret", "upward/secret", "file", &absolute] {
        let pulled = pull(&site, &agent, path);
        assert!(matches!(pulled.code, Some(2 | 3)), "{path}: {}", pulled.describe());
        assert!(!site.local().join("pulled").exists(), "{path} came out");
    }
    for path in ["../outside/secret", "../outside/", "absolute/secret", "absolute/new", "upward/new", "upward/"] {
        let pushed = push(&site, &agent, path);
        assert!(matches!(pushed.code, Some(2 | 4)), "{path}: {}", pushed.describe());
    }
    // A symbolic link to a place outside the root is neither followed nor replaced.
    push(&site, &agent, "file").expect(4);
    assert_eq!(fs::read(site.path("outside/secret")).unwrap(), b"secret");
    assert_eq!(fs::read_dir(site.path("outside")).unwrap().count(), 1);
    // Percent encoding does not hide a path.
    pull(&site, &agent, "%2e%2e/outside/secret");
    assert!(!site.local().join("pulled").exists());
}

#[test]
fn symlinks_in_a_tree_do_not_lead_out_of_the_root() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.path("outside/secret"), b"secret");
    write(&site.root().join("tree/real"), b"real");
    symlink("real", site.root().join("tree/inside")).unwrap();
    symlink(site.path("outside/secret"), site.root().join("tree/out")).unwrap();
    symlink("../../outside", site.root().join("tree/out-directory")).unwrap();
    let pulled = site.copy(&agent).arg(agent.url("tree")).arg("tree").run().expect(1);
    assert_eq!(pulled.count("unreadable"), 2, "{}", pulled.describe());
    let mut names: Vec<_> = fs::read_dir(site.local().join("tree")).unwrap().map(|i| i.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["inside", "real"]);
    assert_eq!(fs::read(site.local().join("tree/inside")).unwrap(), b"real");
}

#[test]
fn a_symlink_at_the_destination_of_a_pull_does_not_lead_what_comes_elsewhere() {
    let site = Site::new();
    let agent = site.agent();
    fs::create_dir(site.path("outside")).unwrap();
    for size in [100, 2 * MIB] {
        write(&site.root().join("tree/d/f"), &Seeded::new(1).bytes(size));
        fs::create_dir_all(site.local().join("into/tree")).unwrap();
        symlink(site.path("outside"), site.local().join("into/tree/d")).unwrap();
        let pulled = site.copy(&agent).arg(agent.url("tree")).arg("into").run();
        assert!(matches!(pulled.code, Some(1 | 4)), "{}", pulled.describe());
        assert_eq!(fs::read_dir(site.path("outside")).unwrap().count(), 0);
        fs::remove_dir_all(site.local().join("into")).unwrap();
    }
}

#[test]
fn an_unknown_agent_is_refused_without_a_terminal_and_its_fingerprint_is_shown() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), b"bytes");
    for via in ["tcp", "quic"] {
        let refused = site.bare_copy().args(["--via", via, "f"]).arg(agent.url("f")).run().expect(6);
        refused.says(&agent.fingerprint).says("sterna id --state DIR").says("listening … fingerprint SHA256:…");
    }
    assert!(!site.root().join("f").exists());
    // A key that was trusted once is in known hosts.
    push(&site, &agent, "f").expect(0);
    site.bare_copy().arg("f").arg(agent.url("g")).succeed();
}

#[test]
fn an_agent_whose_key_has_changed_is_refused() {
    let site = Site::new();
    let mut agent = site.agent();
    write(&site.local().join("f"), b"bytes");
    push(&site, &agent, "f").expect(0);
    agent.kill();
    fs::remove_dir_all(site.path("agent-state")).unwrap();
    let other = site.agent_at(&agent.addr.to_string());
    assert_ne!(agent.fingerprint, other.fingerprint);
    let refused = site.bare_copy().args(["f"]).arg(other.url("g")).run().expect(6);
    refused.says("only if you know that it was set up anew");
    refused.says("has changed").says(&other.fingerprint).says(&agent.fingerprint);
    site.copy(&agent).arg("f").arg(other.url("g")).run().expect(6);
    assert!(!site.root().join("g").exists());
}
