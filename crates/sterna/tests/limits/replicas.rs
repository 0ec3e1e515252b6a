//! Tests one copy from replicas on networks with different rates.

use sterna_lab::Lab;

use crate::site::{BINARY, Site};
use crate::tree::{Seeded, assert_same_file, write};
use crate::{alone, lab, path};

#[test]
fn two_replicas_on_networks_of_different_rates_give_one_file() {
    let _alone = alone();
    let mut model = path(10, 40);
    model.second = Some(Box::new(path(80, 20)));
    let Some(lab) = lab("replicas", &model, &[]) else { return };
    let (client, slow, fast) = (Site::new(), Site::new(), Site::new());
    let bytes = Seeded::new(5).bytes(24_000_000);
    [&slow, &fast].iter().for_each(|site| write(&site.root().join("f"), &bytes));
    let agent = |site: &Site, lab: &Lab, network: usize| {
        let (root, address) = (site.root(), lab.host_b().addresses()[network]);
        let flags = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()];
        site.agent_by(lab.host_b().command(BINARY), &format!("{address}:0"), &flags)
    };
    let (slow_agent, fast_agent) = (agent(&slow, &lab, 0), agent(&fast, &lab, 1));
    let mut copy = client.copy_by(lab.host_a().command(BINARY));
    copy.args(["--same", "--compress", "never", "--via", "tcp"]);
    copy.args(["--trust", &slow_agent.fingerprint, "--trust", &fast_agent.fingerprint]);
    let outcome = copy.arg(slow_agent.url("f")).arg(fast_agent.url("f")).arg("f").succeed();
    assert_same_file(&fast.root().join("f"), &client.local().join("f"));
    let replicas = outcome.summary()["replicas"].as_array().unwrap();
    let given: Vec<u64> = replicas.iter().map(|replica| replica["bytes"].as_u64().unwrap()).collect();
    assert_eq!(given.iter().sum::<u64>(), 24_000_000, "{}", outcome.describe());
}
