//! `tepui config check` on the file that a deployment begins with.

use crate::{tepui, text};

#[test]
fn the_configuration_of_the_example_deployment_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/deploy/tepui.toml");
    let output = tepui(dir.path(), &["config", "check", "--config", file]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let of_file = table.lines().filter(|line| line.contains(file));
    let keys: Vec<&str> = of_file.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(keys, ["data", "listen", "memory", "metrics.listen"], "{table}");
}
