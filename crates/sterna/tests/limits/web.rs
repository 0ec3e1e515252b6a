//! Tests copies from a web server over paths of the lab.

use sterna_lab::{Lab, LinkModel};

use crate::site::{BINARY, Site};
use crate::tree::{Seeded, assert_same_file, write};
use crate::webserver::{Kind, WebServer};
use crate::{account, alone, lab, path};

/// Starts a web server on the far host of a lab, with a file.
fn served(name: &str, model: &LinkModel, sysctls: &[(&str, &str)], more: &str) -> Option<(Lab, WebServer)> {
    let lab = lab(name, model, sysctls)?;
    let server =
        WebServer::start_on(&|program| lab.host_b().command(program), lab.host_b().address().into(), Kind::Nginx, more);
    write(&server.root().join("f"), &Seeded::new(6).bytes(6_000_000));
    Some((lab, server))
}

#[test]
fn a_copy_from_a_web_server_arrives_with_an_account() {
    let _alone = alone();
    let small = ("net.ipv4.tcp_rmem", "4096 65536 262144");
    let mut lossy = path(200, 40);
    lossy.forward.loss = 0.01;
    let cases: [(_, _, &[(&str, &str)], _); 3] = [
        ("web-rmem", path(1000, 80), &[small], ""),
        ("web-slow", path(200, 40), &[], "limit_rate 4m;"),
        ("web-loss", lossy, &[], ""),
    ];
    for (name, model, sysctls, more) in cases {
        let Some((lab, server)) = served(name, &model, sysctls, more) else { return };
        let site = Site::new();
        let outcome =
            site.copy_by(lab.host_a().command(BINARY)).args(["--lanes", "2"]).arg(server.url("f")).arg("f").succeed();
        assert_same_file(&server.root().join("f"), &site.local().join("f"));
        account(&outcome);
    }
}
