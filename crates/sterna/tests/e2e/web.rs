//! Tests copies from web servers: real servers, and faults between server and client.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::chaos_proxy::{ChaosProxy, Reaction};
use crate::site::{BINARY, CopyCommand, Site, wait_until};
use crate::tree::{MIB, Seeded, assert_same_file, set_mtime, write};
use crate::webserver::{FaultProxy, Kind, Request, Verdict, WebServer};

/// Starts a server with a file `f` of `bytes` bytes.
fn server_with(kind: Kind, bytes: usize) -> WebServer {
    let server = WebServer::start(kind);
    write(&server.root().join("f"), &Seeded::new(1).bytes(bytes));
    server
}

/// Returns a copy of URLs into `local` of the site.
fn copy_of(site: &Site, urls: &[String]) -> CopyCommand {
    let mut copy = site.bare_copy();
    copy.args(urls).arg(".");
    copy
}

/// Returns the hidden files that a copy has left.
fn left_over(site: &Site) -> Vec<PathBuf> {
    let names = fs::read_dir(site.local()).unwrap().map(|item| item.unwrap().path());
    names.filter(|path| path.file_name().unwrap().as_encoded_bytes().starts_with(b".sterna-")).collect()
}

/// Returns the first and the last byte of a range request.
fn range_of(request: &Request) -> Option<(u64, Option<u64>)> {
    let (first, last) = request.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().unwrap(), last.parse().ok()))
}

#[test]
fn files_of_every_size_come_from_nginx_and_apache() {
    for kind in [Kind::Nginx, Kind::Apache] {
        let server = WebServer::start(kind);
        let site = Site::new();
        // Sizes around the edges of a packed file and of a block, and one with enough blocks for every lane.
        let sizes = [0, 1, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, MIB, MIB + 1, 40 * MIB + 7];
        let mut urls = Vec::new();
        for (index, size) in sizes.into_iter().enumerate() {
            let path = server.root().join(format!("a b-{index}.h5"));
            write(&path, &Seeded::new(index as u64).bytes(size));
            set_mtime(&path, 1_600_000_000 + index as u64, 0);
            urls.push(server.url(&format!("a%20b-{index}.h5")));
        }
        let outcome = copy_of(&site, &urls).succeed();
        assert_eq!(outcome.summary()["copied"], sizes.len(), "{}", outcome.describe());
        for index in 0..sizes.len() {
            let name = format!("a b-{index}.h5");
            assert_same_file(&server.root().join(&name), &site.local().join(&name));
            let modified = fs::metadata(site.local().join(&name)).unwrap().modified().unwrap();
            let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap();
            assert_eq!(since.as_secs(), 1_600_000_000 + index as u64);
        }
        let again = copy_of(&site, &urls).succeed();
        assert_eq!(again.summary()["up_to_date"], sizes.len(), "{}", again.describe());
    }
}

#[test]
fn empty_files_of_a_server_that_refuses_their_first_byte_need_one_connection() {
    let server = WebServer::start(Kind::Nginx);
    write(&server.root().join("f"), b"");
    // RFC 9110 allows this answer; nginx sends an empty file for any range.
    let proxy = FaultProxy::new(server.addr, |request| {
        match range_of(request) {
        Some(_) => Verdict::Answer(
            "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                .to_owned(),
        ),
        None => Verdict::Pass,
    }
    });
    let site = Site::new();
    copy_of(&site, &[proxy.url("f")]).args(["--lanes", "1"]).succeed();
    assert_same_file(&server.root().join("f"), &site.local().join("f"));
}

#[test]
fn a_page_that_says_that_no_part_can_be_had_is_never_data() {
    let server = server_with(Kind::Nginx, 1000);
    let page = "<html>the page that says what is wrong</html>";
    let proxy = FaultProxy::new(server.addr, move |request| {
        let status = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Type: text/html\r\nConnection: close\r\n";
        Verdict::Answer(match (request.path(), range_of(request)) {
            ("/length", _) => format!("{status}Content-Length: {}\r\n\r\n{page}", page.len()),
            ("/chunked", _) => {
                format!("{status}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{page}\r\n0\r\n\r\n", page.len())
            }
            // A range in the answer without a range in the request.
            (_, None) => {
                "HTTP/1.1 206 Part\r\nContent-Range: bytes 0-4/5\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
                    .to_owned()
            }
            _ => format!("{status}Content-Length: 0\r\n\r\n"),
        })
    });
    let site = Site::new();
    for name in ["length", "chunked"] {
        let outcome = copy_of(&site, &[proxy.url(name)]).run().expect(3);
        outcome.says("416 Range Not Satisfiable to a request for the whole file");
    }
    copy_of(&site, &[proxy.url("part")]).run().expect(3).says("206 to a request for the whole file, after 416");
    assert!(fs::read_dir(site.local()).unwrap().next().is_none(), "something was written");
}

#[test]
fn lanes_read_parts_of_their_own() {
    let server = server_with(Kind::Nginx, 32 * MIB);
    let proxy = FaultProxy::new(server.addr, |_| Verdict::Pass);
    let site = Site::new();
    copy_of(&site, &[proxy.url("f")]).args(["--lanes", "4"]).succeed();
    assert_same_file(&server.root().join("f"), &site.local().join("f"));
    let seen = proxy.seen();
    // One request per block would be 32 requests.
    assert!((4..32).contains(&seen.len()), "{seen:#?}");
    assert!(proxy.most_at_once() <= 8, "a lane has more requests at once than one, and one that it is giving up");
    let later = &seen[1..];
    assert!(
        later.iter().all(|request| request.header("if-range").is_some_and(|tag| tag.starts_with('"'))),
        "{seen:#?}"
    );
    assert!(seen.iter().all(|request| request.header("accept-encoding") == Some("identity")), "{seen:#?}");
}

#[test]
fn a_copy_that_is_killed_goes_on_in_the_middle() {
    for kind in [Kind::Nginx, Kind::Apache] {
        let server = server_with(kind, 48 * MIB);
        let proxy = FaultProxy::new(server.addr, |_| Verdict::Pass);
        let site = Site::new();
        proxy.allow(30 * MIB as u64);
        let mut copying = copy_of(&site, &[proxy.url("f")]).args(["--lanes", "4"]).start();
        wait_until("a journal that speaks of blocks", || {
            let journals = left_over(&site).into_iter().filter(|path| path.extension().unwrap() == "journal");
            proxy.is_spent() && journals.map(|path| fs::metadata(path).unwrap().len()).sum::<u64>() > 88 + 10 * 64
        });
        copying.kill();
        let before = proxy.seen().len();
        proxy.allow(u64::MAX);
        let outcome = copy_of(&site, &[proxy.url("f")]).args(["--lanes", "4"]).succeed();
        let held = outcome.summary()["bytes_held"].as_u64().unwrap();
        assert!(held >= 10 * MIB as u64, "{}", outcome.describe());
        assert_same_file(&server.root().join("f"), &site.local().join("f"));
        // The first request gets the metadata of the file and can begin at its start; the others request missing data.
        let asked: u64 =
            proxy.seen()[before + 1..].iter().filter_map(range_of).map(|(first, last)| last.unwrap() + 1 - first).sum();
        assert!(asked <= 48 * MIB as u64 - held + 8 * MIB as u64, "{asked} bytes were asked for beside {held}");
    }
}

#[test]
fn a_copy_that_is_stopped_ends_at_once_and_says_so() {
    let server = server_with(Kind::Nginx, 32 * MIB);
    let proxy = FaultProxy::new(server.addr, |_| Verdict::Pass);
    let site = Site::new();
    // Each lane waits for bytes that do not arrive.
    proxy.allow(6 * MIB as u64);
    let mut copying = copy_of(&site, &[proxy.url("f")]).args(["--lanes", "4"]).start();
    wait_until("bytes", || proxy.is_spent());
    copying.interrupt();
    let outcome = copying.finish().expect(130);
    assert_eq!(outcome.count("file"), 0, "it has not failed: {}", outcome.describe());
    proxy.allow(u64::MAX);
    copy_of(&site, &[proxy.url("f")]).succeed();
    assert_same_file(&server.root().join("f"), &site.local().join("f"));
}

#[test]
fn a_dry_run_names_files_and_writes_nothing() {
    let server = server_with(Kind::Nginx, 3 * MIB);
    let site = Site::new();
    let outcome = copy_of(&site, &[server.url("f")]).arg("--dry-run").succeed();
    assert_eq!((&outcome.summary()["would_copy"], &outcome.summary()["bytes"]), (&1.into(), &(3 * MIB).into()));
    assert!(fs::read_dir(site.local()).unwrap().next().is_none());
}

#[test]
fn bodies_that_are_cut_again_and_again_bring_everything() {
    let server = server_with(Kind::Nginx, 20 * MIB);
    let proxy = FaultProxy::new(server.addr, |request| match request.number {
        // Cuts the first request too, and some within their first bytes.
        number if number < 24 => Verdict::Cut((number as u64 * 77_777) % (2 * MIB as u64)),
        _ => Verdict::Pass,
    });
    let site = Site::new();
    copy_of(&site, &[proxy.url("f")]).args(["--lanes", "4"]).succeed();
    assert_same_file(&server.root().join("f"), &site.local().join("f"));
    assert!(proxy.seen().len() > 24);
}

#[test]
fn a_server_that_has_too_much_to_do_is_left_alone_and_gets_fewer_connections() {
    for (status, wait) in [("429 Too Many Requests", "1"), ("503 Service Unavailable", "0")] {
        let server = server_with(Kind::Nginx, 24 * MIB);
        let refusal =
            format!("HTTP/1.1 {status}\r\nRetry-After: {wait}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let proxy = FaultProxy::new(server.addr, move |request| match request.number {
            3..6 => Verdict::Answer(refusal.clone()),
            _ => Verdict::Pass,
        });
        let site = Site::new();
        let outcome = copy_of(&site, &[proxy.url("f")]).args(["--lanes", "8"]).succeed();
        assert_same_file(&server.root().join("f"), &site.local().join("f"));
        outcome.says("waiting").says(&status[..3]);
    }
}

#[test]
fn a_server_that_asks_for_more_quiet_than_we_have_is_told_of() {
    let server = server_with(Kind::Nginx, 2 * MIB);
    let proxy = FaultProxy::new(server.addr, |_| {
        Verdict::Answer(
            "HTTP/1.1 429 Slow Down\r\nRetry-After: 86400\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned(),
        )
    });
    let site = Site::new();
    let outcome = copy_of(&site, &[proxy.url("f")]).run().expect(3);
    outcome.says("86400 s");
    assert_eq!(proxy.seen().len(), 1);
}

#[test]
fn a_page_is_never_data() {
    let server = server_with(Kind::Nginx, 2 * MIB);
    write(&server.root().join("page.html"), b"<html>a page that is meant</html>");
    let page = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 26\r\nConnection: close\r\n\r\n\
                <html>who are you?</html>\n";
    let elsewhere = server.url("sso/login?back=f");
    let proxy = FaultProxy::new(server.addr, move |request| match request.path() {
        "/page.html" | "/f" if request.number > 5 => Verdict::Pass,
        "/redirected" => Verdict::Answer(format!(
            "HTTP/1.1 302 Found\r\nLocation: {elsewhere}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )),
        "/near.html" => Verdict::Answer(
            "HTTP/1.1 302 Found\r\nLocation: /auth/login\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned(),
        ),
        _ => Verdict::Answer(page.to_owned()),
    });
    let site = Site::new();
    copy_of(&site, &[proxy.url("f")]).run().expect(3).says("login page");
    copy_of(&site, &[proxy.url("near.html")]).run().expect(3).says("login page");
    copy_of(&site, &[proxy.url("redirected")]).run().expect(3);
    assert!(fs::read_dir(site.local()).unwrap().next().is_none(), "something was written");
    while proxy.seen().len() <= 5 {
        copy_of(&site, &[proxy.url("f")]).run().expect(3);
    }
    copy_of(&site, &[proxy.url("page.html")]).succeed();
    assert_same_file(&server.root().join("page.html"), &site.local().join("page.html"));
}

#[test]
fn a_page_without_a_type_is_never_data() {
    let server = server_with(Kind::Nginx, 1000);
    let page = "\n<HTML>login</HTML>";
    let proxy = FaultProxy::new(server.addr, move |request| {
        let more = match request.path() {
            "/plain" => format!("Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{page}", page.len()),
            "/chunked" => format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{page}\r\n0\r\n\r\n", page.len()),
            _ => format!("Content-Length: {}\r\n\r\n{page}", page.len()),
        };
        Verdict::Answer(format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{more}"))
    });
    let site = Site::new();
    for name in ["f", "plain", "chunked"] {
        copy_of(&site, &[proxy.url(name)]).run().expect(3).says("login page");
    }
    assert!(fs::read_dir(site.local()).unwrap().next().is_none(), "something was written");
    // A page is accepted if its name or its digest shows that it is intended.
    copy_of(&site, &[proxy.url("page.html")]).succeed();
    let digest = blake3::hash(page.as_bytes());
    copy_of(&site, &[proxy.url("f")]).args(["--expect", &format!("blake3:{digest}")]).succeed();
    assert_eq!(fs::read(site.local().join("f")).unwrap(), page.as_bytes());
}

#[test]
fn a_session_that_runs_out_in_the_middle_writes_no_page() {
    let server = server_with(Kind::Nginx, 16 * MIB);
    let page = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 26\r\nConnection: close\r\n\r\n\
                <html>who are you?</html>\n";
    let proxy = FaultProxy::new(server.addr, move |request| match request.number {
        0 => Verdict::Pass,
        _ => Verdict::Answer(page.to_owned()),
    });
    let site = Site::new();
    copy_of(&site, &[proxy.url("f")]).args(["--lanes", "4"]).run().expect(3).says("login page");
    assert!(!site.local().join("f").exists());
}

#[test]
fn a_file_that_changes_in_the_middle_is_not_published() {
    let server = server_with(Kind::Nginx, 16 * MIB);
    let edits: [fn(String) -> String; 3] = [
        |head| head.replace("ETag: \"", "ETag: \"x"),
        |head| head.lines().filter(|line| !line.starts_with("ETag")).collect::<Vec<_>>().join("\r\n"),
        |head| head.replace(&format!("/{}", 16 * MIB), &format!("/{}", 16 * MIB + 1)),
    ];
    for edit in edits {
        let proxy = FaultProxy::new(server.addr, move |request| match request.number {
            0..2 => Verdict::Pass,
            _ => Verdict::Edit(edit),
        });
        let site = Site::new();
        let outcome = copy_of(&site, &[proxy.url("f")]).args(["--lanes", "4"]).run().expect(3);
        outcome.says("changed while it was read");
        assert!(!site.local().join("f").exists());
    }
}

#[test]
fn a_file_that_changed_between_two_runs_starts_over() {
    let server = server_with(Kind::Nginx, 24 * MIB);
    let proxy = FaultProxy::new(server.addr, |_| Verdict::Pass);
    let site = Site::new();
    proxy.allow(12 * MIB as u64);
    let mut copying = copy_of(&site, &[proxy.url("f")]).args(["--lanes", "2"]).start();
    wait_until("a journal", || left_over(&site).iter().any(|path| path.extension().unwrap() == "journal"));
    copying.kill();
    proxy.allow(u64::MAX);
    // The size is the same; the time differs, and with it the ETag of nginx.
    write(&server.root().join("f"), &Seeded::new(2).bytes(24 * MIB));
    set_mtime(&server.root().join("f"), 1_500_000_000, 0);
    let outcome = copy_of(&site, &[proxy.url("f")]).succeed();
    assert_eq!(outcome.summary()["bytes_held"], 0, "{}", outcome.describe());
    assert_same_file(&server.root().join("f"), &site.local().join("f"));
}

#[test]
fn a_body_that_is_always_short_is_an_error() {
    let server = server_with(Kind::Nginx, 200 << 10);
    let proxy = FaultProxy::new(server.addr, |_| Verdict::Cut(100 << 10));
    let site = Site::new();
    copy_of(&site, &[proxy.url("f")]).args(["--linger", "1s"]).run().expect(3).says("cut at byte 102400");
    assert!(!site.local().join("f").exists());
}

/// Rule that removes ranges: requests the whole file from the server.
fn without_ranges(request: &Request) -> Verdict {
    let lines = request.head.trim_end().lines().filter(|line| !line.to_ascii_lowercase().starts_with("range:"));
    Verdict::Ask(lines.collect::<Vec<_>>().join("\r\n"))
}

#[test]
fn a_server_without_ranges_is_read_in_one_stream() {
    let server = server_with(Kind::Nginx, 12 * MIB);
    let proxy = FaultProxy::new(server.addr, without_ranges);
    let site = Site::new();
    let digest = blake3::hash(&fs::read(server.root().join("f")).unwrap());
    let outcome = copy_of(&site, &[proxy.url("f")]).args(["--expect", &format!("blake3:{digest}")]).succeed();
    assert_same_file(&server.root().join("f"), &site.local().join("f"));
    outcome.says("no ranges");
    // nginx reports behind the proxy that it supports ranges; the client checks this once.
    assert_eq!(proxy.seen().len(), 3, "one stream");
    let wrong = format!("blake3:{}", blake3::hash(b"something else"));
    let site = Site::new();
    let outcome = copy_of(&site, &[proxy.url("f")]).args(["--expect", &wrong]).run();
    assert_ne!(outcome.code, Some(0), "{}", outcome.describe());
    assert!(!site.local().join("f").exists());
}

/// nginx that sends neither an ETag nor a Last-Modified, with a file `f` of `bytes` bytes.
fn server_without_versions(bytes: usize) -> WebServer {
    let server = WebServer::start_with(Kind::Nginx, "etag off; add_header Last-Modified '';");
    write(&server.root().join("f"), &Seeded::new(1).bytes(bytes));
    server
}

/// A request for a range would get bytes of another file than the request before it.
#[test]
fn a_file_without_a_version_that_changes_with_each_request_is_one_version() {
    let server = server_without_versions(12 * MIB);
    let (at, new) = (server.root().join("f"), server.root().join("new"));
    let proxy = FaultProxy::new(server.addr, move |request| {
        write(&new, &Seeded::new(request.number as u64).bytes(12 * MIB));
        fs::rename(&new, &at).unwrap();
        Verdict::Pass
    });
    let site = Site::new();
    let outcome = copy_of(&site, &[proxy.url("f")]).args(["--lanes", "4"]).succeed();
    outcome.says("neither an ETag nor a Last-Modified").says("one request");
    let copied = fs::read(site.local().join("f")).unwrap();
    let is_version = |number| Seeded::new(number).bytes(12 * MIB) == copied;
    assert!((0..proxy.seen().len() as u64).any(is_version), "a mix of versions: {:#?}", proxy.seen());
    assert_eq!(proxy.seen().len(), 2, "the second request gets the whole file");
}

#[test]
fn a_file_without_a_version_goes_on_after_a_cut_only_if_its_bytes_are_the_same() {
    // In the middle of a block; at its end; one byte after it.
    for (cut, changes) in
        [(5 * MIB + 12_345, false), (5 * MIB, false), (5 * MIB + 12_345, true), (5 * MIB, true), (5 * MIB + 1, true)]
    {
        let server = server_without_versions(12 * MIB);
        let (at, new) = (server.root().join("f"), server.root().join("new"));
        let proxy = FaultProxy::new(server.addr, move |request| match request.number {
            1 => Verdict::Cut(cut as u64),
            2 if changes => {
                // Only the last byte before the cut is another one.
                let mut bytes = Seeded::new(1).bytes(12 * MIB);
                bytes[cut - 1] ^= 1;
                write(&new, &bytes);
                fs::rename(&new, &at).unwrap();
                Verdict::Pass
            }
            _ => Verdict::Pass,
        });
        let site = Site::new();
        let outcome = copy_of(&site, &[proxy.url("f")]).args(["--lanes", "4"]).run();
        if changes {
            outcome.expect(3).says("changed while it was read").says("other bytes");
            assert!(!site.local().join("f").exists(), "cut at {cut}");
        } else {
            assert_eq!(outcome.code, Some(0), "{}", outcome.describe());
            assert_same_file(&server.root().join("f"), &site.local().join("f"));
        }
    }
}

#[test]
fn another_part_of_the_file_than_was_asked_for_is_refused() {
    let server = server_with(Kind::Nginx, 2 * MIB);
    // The stream is cut before its first byte; then the answer is the end of the file.
    let proxy = FaultProxy::new(server.addr, |request| match request.number {
        0..2 => without_ranges(request),
        2 => Verdict::Cut(0),
        _ => {
            let line = format!("Range: bytes={MIB}-{}\r\n", 2 * MIB - 1);
            let end = request.head.find("\r\n").unwrap() + 2;
            Verdict::Ask(format!("{}{line}{}", &request.head[..end], request.head[end..].trim_end()))
        }
    });
    let site = Site::new();
    let outcome = copy_of(&site, &[proxy.url("f")]).run();
    outcome.expect(3).says("bytes from 1048576 on where those from 0 on were asked for");
    assert!(!site.local().join("f").exists());
}

#[test]
fn a_body_whose_end_proves_nothing_is_refused() {
    let server = server_with(Kind::Nginx, MIB);
    let proxy = FaultProxy::new(server.addr, |request| match request.path() {
        "/chunked" => Verdict::Answer(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
                .to_owned(),
        ),
        "/cut" => Verdict::Answer(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhel".to_owned(),
        ),
        "/encoded" => Verdict::Answer(
            "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
                .to_owned(),
        ),
        _ => Verdict::Answer("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello".to_owned()),
    });
    let site = Site::new();
    copy_of(&site, &[proxy.url("closed")]).run().expect(3).says("neither its length nor a mark of its end");
    copy_of(&site, &[proxy.url("cut")]).args(["--linger", "1s"]).run().expect(3);
    copy_of(&site, &[proxy.url("encoded")]).run().expect(3).says("gzip");
    copy_of(&site, &[proxy.url("chunked")]).succeed();
    assert_eq!(fs::read(site.local().join("chunked")).unwrap(), b"hello");
    assert_eq!(fs::read_dir(site.local()).unwrap().count(), 1);
}

#[test]
fn a_body_with_two_ends_or_in_a_coding_is_refused() {
    let server = server_with(Kind::Nginx, 1000);
    let proxy = FaultProxy::new(server.addr, |request| {
        let chunks = format!("5000\r\n{}\r\n0\r\n\r\n", "x".repeat(0x5000));
        Verdict::Answer(match request.path() {
            "/both" => format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n{chunks}"
            ),
            "/old" => format!("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"),
            _ => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: gzip\r\nConnection: close\r\n\r\nhello"
                .to_owned(),
        })
    });
    let site = Site::new();
    copy_of(&site, &[proxy.url("both")]).run().expect(3).says("both a Content-Length and chunks");
    copy_of(&site, &[proxy.url("old")]).run().expect(3).says("HTTP/1.0, which has no chunks");
    copy_of(&site, &[proxy.url("encoded")]).run().expect(3).says("a Transfer-Encoding of").says("gzip");
    assert!(fs::read_dir(site.local()).unwrap().next().is_none(), "something was written");
}

#[test]
fn a_token_goes_to_its_server_and_is_read_again_when_it_is_refused() {
    let server = server_with(Kind::Nginx, 8 * MIB);
    let other = FaultProxy::new(server.addr, |_| Verdict::Pass);
    let elsewhere = other.url("f");
    let proxy = FaultProxy::new(server.addr, move |request| match request.header("authorization") {
        Some("Bearer second") => Verdict::Answer(format!(
            "HTTP/1.1 307 Moved\r\nLocation: {elsewhere}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )),
        _ => Verdict::Answer("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned()),
    });
    let site = Site::new();
    let token = site.path("token");
    fs::write(&token, "first").unwrap();
    let command = format!("cat {0}; printf second > {0}", token.display());
    copy_of(&site, &[proxy.url("f")]).args(["--http-token-command", &command]).succeed();
    assert_same_file(&server.root().join("f"), &site.local().join("f"));
    assert!(proxy.seen().iter().any(|request| request.header("authorization") == Some("Bearer first")));
    let strangers = other.seen();
    assert!(!strangers.is_empty() && strangers.iter().all(|request| request.header("authorization").is_none()));
    // A token that is refused again is an error; the error does not show the token.
    fs::write(&token, "hunter2hunter2").unwrap();
    let mut copy = copy_of(&site, &[proxy.url("f")]);
    let outcome = copy.arg("--http-token-file").arg(&token).run().expect(3);
    assert!(!outcome.text().contains("hunter2"), "{}", outcome.describe());
}

#[test]
fn a_password_for_this_host_never_reaches_a_proxy() {
    let server = server_with(Kind::Nginx, 1000);
    let server_port = server.addr.port();
    let proxy = FaultProxy::new(server.addr, |_| {
        Verdict::Answer("HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned())
    });
    let site = Site::new();
    let netrc = site.path("netrc");
    let hosts = ["localhost", "127.0.0.1", "elsewhere.invalid"];
    fs::write(&netrc, hosts.map(|host| format!("machine {host} login me password hunter2\n")).concat()).unwrap();
    let copy = |url: String| {
        let mut command = Command::new(BINARY);
        for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
            command.env(name, format!("http://{}", proxy.addr));
        }
        command.env_remove("NO_PROXY").env_remove("no_proxy").env("NETRC", &netrc);
        let mut copy = site.copy_by(command);
        copy.arg(url).arg(".");
        copy
    };
    for host in ["localhost", "127.0.0.1"] {
        copy(format!("http://{host}:{server_port}/f")).args(["--overwrite", "always"]).succeed();
        assert_same_file(&server.root().join("f"), &site.local().join("f"));
    }
    assert!(proxy.seen().is_empty(), "{:?}", proxy.seen());
    // The proxy is in use for other hosts, and receives no password in clear text for them either.
    copy("http://elsewhere.invalid/f".to_owned()).args(["--linger", "1s"]).run();
    assert!(!proxy.seen().is_empty(), "no proxy is used: this test shows nothing");
    assert!(proxy.seen().iter().all(|request| !request.head.to_lowercase().contains("authorization")));
}

#[test]
fn statuses_end_with_the_code_of_the_source() {
    let server = server_with(Kind::Apache, 1000);
    let proxy = FaultProxy::new(server.addr, |request| match request.path() {
        "/f" => Verdict::Pass,
        path => {
            Verdict::Answer(format!("HTTP/1.1 {} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", &path[1..]))
        }
    });
    let site = Site::new();
    for (status, kind) in
        [("401", "denied"), ("403", "denied"), ("404", "not_found"), ("410", "not_found"), ("400", "io")]
    {
        let outcome = copy_of(&site, &[proxy.url(status)]).run().expect(3);
        assert_eq!(outcome.last("unreadable")["error"]["kind"], kind, "{}", outcome.describe());
    }
    // The other files are still copied.
    let outcome = copy_of(&site, &[proxy.url("404"), proxy.url("f")]).run().expect(1);
    assert_eq!((&outcome.summary()["copied"], &outcome.summary()["failed"]), (&1.into(), &1.into()));
    // Sources with the same name, and arguments that are no valid copy.
    copy_of(&site, &[proxy.url("f"), proxy.url("f?x=1")]).run().expect(1).says("two sources have the name f");
    copy_of(&site, &[proxy.url("f"), "local".to_owned()]).run().expect(2);
    copy_of(&site, &[proxy.url("")]).run().expect(2);
}

#[test]
fn certificates_are_those_of_known_authorities() {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    let site = Site::new();
    let (pem, private) = (site.path("server.pem"), site.path("server.key"));
    fs::write(&pem, certificate.pem()).unwrap();
    fs::write(&private, key.serialize_pem()).unwrap();
    let more = format!("ssl_certificate {}; ssl_certificate_key {};", pem.display(), private.display());
    let server = WebServer::start_with(Kind::NginxTls, &more);
    write(&server.root().join("f"), &Seeded::new(1).bytes(8 * MIB));
    let token = site.path("token");
    fs::write(&token, "secret").unwrap();
    copy_of(&site, &[server.url("f")]).run().expect(6).says("certificate").says("--http-ca");
    let mut copy = copy_of(&site, &[server.url("f")]);
    copy.arg("--http-ca").arg(&pem).arg("--http-token-file").arg(&token).succeed();
    assert_same_file(&server.root().join("f"), &site.local().join("f"));
    // A file that is no certificate authority.
    let mut copy = copy_of(&site, &[server.url("f")]);
    copy.arg("--http-ca").arg(&token).run().expect(2);
}

#[test]
fn what_is_wrong_with_a_certificate_is_said() {
    let site = Site::new();
    let new = |name: &str| rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    let mut authority = new("127.0.0.1");
    authority.distinguished_name.push(rcgen::DnType::CommonName, "an authority");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let mut old = new("127.0.0.1");
    (old.not_before, old.not_after) = (rcgen::date_time_ymd(2001, 1, 1), rcgen::date_time_ymd(2002, 1, 1));
    let mut early = new("127.0.0.1");
    early.not_before = rcgen::date_time_ymd(3001, 1, 1);
    early.not_after = rcgen::date_time_ymd(3002, 1, 1);
    // Error texts if the certificate itself is given as the authority, and if no authority is given.
    let unknown = "give the certificate of a private one (--http-ca)";
    let cases = [
        ("authority", authority, ["(CA:TRUE)"; 2]),
        ("old", old, ["ran out on Tue, 01 Jan 2002"; 2]),
        ("early", early, ["is valid from Thu, 01 Jan 3001"; 2]),
        ("other", new("other.example"), ["is for other.example and not for 127.0.0.1", unknown]),
    ];
    let path = |name: &str, ending: &str| site.path(&format!("{name}.{ending}"));
    for (name, parameters, words) in cases {
        let key = rcgen::KeyPair::generate().unwrap();
        let (pem, private) = (path(name, "pem"), path(name, "key"));
        fs::write(&pem, parameters.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(&private, key.serialize_pem()).unwrap();
        let more = format!("ssl_certificate {}; ssl_certificate_key {};", pem.display(), private.display());
        let server = WebServer::start_with(Kind::NginxTls, &more);
        copy_of(&site, &[server.url("f")]).arg("--http-ca").arg(&pem).run().expect(6).says(words[0]);
        let outcome = copy_of(&site, &[server.url("f")]).run().expect(6);
        outcome.says(words[1]);
        assert_eq!(outcome.text().contains("--http-ca"), words[1] == unknown, "{}", outcome.describe());
    }
    // Another authority, and an authority with the same name but another key.
    let (pem, private) = (path("other", "pem"), path("other", "key"));
    let more = format!("ssl_certificate {}; ssl_certificate_key {};", pem.display(), private.display());
    let server = WebServer::start_with(Kind::NginxTls, &more);
    for (name, words) in [("authority", "nor did the given one (--http-ca)"), ("old", "another key has signed")] {
        let mut copy = copy_of(&site, &[server.url("f")]);
        copy.arg("--http-ca").arg(path(name, "pem")).run().expect(6).says(words);
    }
}

#[test]
fn a_redirect_from_https_to_http_is_not_followed() {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    let site = Site::new();
    let (pem, private) = (site.path("server.pem"), site.path("server.key"));
    fs::write(&pem, certificate.pem()).unwrap();
    fs::write(&private, key.serialize_pem()).unwrap();
    let clear = server_with(Kind::Nginx, 1000);
    let more = format!(
        "ssl_certificate {}; ssl_certificate_key {}; location /f {{ return 302 {}; }} location /loop {{ return 302 /loop; }}",
        pem.display(),
        private.display(),
        clear.url("f")
    );
    let server = WebServer::start_with(Kind::NginxTls, &more);
    let copy = |name: &str| {
        let mut copy = copy_of(&site, &[server.url(name)]);
        copy.arg("--http-ca").arg(&pem).run().expect(3)
    };
    copy("f").says("from https to http://");
    copy("loop").says("more than 10 redirects");
}

#[test]
fn a_web_server_can_be_copied_to_an_agent() {
    let server = server_with(Kind::Nginx, 24 * MIB);
    write(&server.root().join("small"), b"some bytes");
    let proxy = FaultProxy::new(server.addr, |request| match request.number {
        3..9 => Verdict::Cut(300_000),
        _ => Verdict::Pass,
    });
    let site = Site::new();
    let agent = site.agent();
    let urls = [proxy.url("f"), proxy.url("small")];
    for via in ["tcp", "quic"] {
        let target = agent.url(&format!("{via}/"));
        site.copy(&agent).args(["--via", via, "--lanes", "4"]).args(&urls).arg(&target).succeed();
        for name in ["f", "small"] {
            assert_same_file(&server.root().join(name), &site.root().join(via).join(name));
        }
    }
}

#[test]
fn lanes_to_an_agent_that_are_cut_give_the_web_server_back() {
    let server = server_with(Kind::Nginx, 24 * MIB);
    let site = Site::new();
    let agent = site.agent();
    let proxy = ChaosProxy::tcp(&agent);
    // Each lane has an open answer then, and the server accepts no more requests than there are lanes.
    proxy.mark(4 * MIB as u64, Reaction::Cut);
    site.copy(&agent).args(["--via", "tcp", "--lanes", "4"]).arg(server.url("f")).arg(proxy.url("in/")).succeed();
    assert_eq!(proxy.marks_reached(), 1);
    assert_same_file(&server.root().join("f"), &site.root().join("in/f"));
}
