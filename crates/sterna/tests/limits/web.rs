//! What limits a copy from a web server is named as far as this end can know it.

use sterna_lab::{Lab, LinkModel};

use crate::site::{BINARY, Outcome, Site};
use crate::tree::{Seeded, write};
use crate::webserver::{Kind, WebServer};
use crate::{alone, lab, named, path};

/// A web server on the far host of a lab, with a file.
fn served(name: &str, model: &LinkModel, sysctls: &[(&str, &str)], more: &str) -> Option<(Lab, WebServer)> {
    let lab = lab(name, model, sysctls)?;
    let server =
        WebServer::start_on(&|program| lab.host_b().command(program), lab.host_b().address().into(), Kind::Nginx, more);
    write(&server.root().join("f"), &Seeded::new(6).bytes(16_000_000));
    Some((lab, server))
}

fn copies<'a>(lab: &'a Lab, server: &'a WebServer, site: &'a Site, flags: &'a [&str]) -> impl Fn(&str) -> Outcome {
    move |name| site.copy_by(lab.host_a().command(BINARY)).args(flags).arg(server.url("f")).arg(name).succeed()
}

#[test]
fn a_full_window_of_this_host_is_named_with_the_buffer_to_set() {
    let _alone = alone();
    let small = ("net.ipv4.tcp_rmem", "4096 65536 262144");
    let Some((lab, server)) = served("web-rmem", &path(1000, 80), &[small], "") else { return };
    let site = Site::new();
    let limits = named("receive_window", copies(&lab, &server, &site, &["--lanes", "2"]));
    let remedy = limits["remedies"]["receive_window"].as_str().unwrap();
    assert!(remedy.starts_with("tcp_rmem max of this host 262 kB; ") && remedy.ends_with(" at 80 ms"), "{remedy}");
}

#[test]
fn a_server_or_its_path_is_named_with_what_was_seen_of_losses() {
    let _alone = alone();
    let mut lossy = path(200, 40);
    lossy.forward.loss = 0.01;
    let cases = [
        ("web-slow", path(200, 40), "limit_rate 2m;", "nothing at this end held it back"),
        ("web-loss", lossy, "", "packets were lost"),
    ];
    for (name, model, more, said) in cases {
        let Some((lab, server)) = served(name, &model, &[], more) else { return };
        let site = Site::new();
        let limits = named("server_or_path", copies(&lab, &server, &site, &["--lanes", "2"]));
        let remedy = limits["remedies"]["server_or_path"].as_str().unwrap();
        assert!(remedy.starts_with(said), "{remedy}");
    }
}
