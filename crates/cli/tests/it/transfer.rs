//! `tepui import` and `tepui export` as a person meets them, against a server of this binary: every format there and
//! back, what is rejected, what an interruption leaves, and exit codes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::{Served, closed, full, tepui};

/// A server, and the directory that commands run in.
struct Place {
    dir: tempfile::TempDir,
    server: Served,
    endpoint: String,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = Served::start(dir.path());
        let endpoint = server.endpoint.clone();
        Self { dir, server, endpoint }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.at(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap()
    }

    /// Runs `tepui COMMAND --table TABLE ARGS`; exit code and what it says.
    fn tepui(&self, command: &str, table: &str, args: &[&str]) -> (i32, String) {
        let mut command = tepui(self.dir.path(), &[command, "--endpoint", &self.endpoint]);
        command.args(["--project=p", "--instance=i", "--table", table]).args(args);
        let done = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (done.status.code().unwrap(), text(done.stdout) + &text(done.stderr))
    }

    fn ok(&self, command: &str, table: &str, args: &[&str]) -> String {
        let (code, text) = self.tepui(command, table, args);
        assert_eq!(code, 0, "{command} {table} {args:?}: {text}");
        text
    }

    /// All cells of a table, with their timestamps, as one CSV file.
    fn cells(&self, table: &str) -> String {
        let args =
            ["look", "--format=csv", "--timestamp=value-encoded", "--files=1", "--overwrite"];
        self.ok("export", table, &args);
        self.read("look-00000-of-00001.csv")
    }
}

/// Rows `row-0000` and on, with an empty value, bytes that CSV has to quote, and timestamps.
fn rows(count: usize) -> String {
    let line = |row: usize| {
        let at = (row + 1) * 1000;
        format!("row-{row:04},value {row}@{at},@{at},\"x,\"\"y\n{row}@{at}\"\n")
    };
    ",f,,g\n,a,b,\"c,1\"\n".to_owned() + &(0..count).map(line).collect::<String>()
}

fn files(dir: &Path, start: &str) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(start))
        .collect();
    names.sort();
    names
}

#[test]
fn a_table_goes_out_in_every_format_and_comes_back_as_it_was() {
    let place = Place::new();
    place.write("rows.csv", &rows(500));
    let text = place.ok(
        "import",
        "t",
        &["rows.csv", "--create", "--timestamp=value-encoded", "--batch-size=7"],
    );
    assert!(text.contains("imported 500 rows, 1500 cells"), "{text}");
    assert_eq!(place.cells("t"), rows(500));
    for (format, suffix) in [("avro", ".avro"), ("parquet", ".parquet"), ("sequencefile", "")] {
        let prefix = format!("out/{format}");
        let text = place.ok("export", "t", &[&prefix, "--format", format]);
        assert!(text.contains("exported 500 rows, 1500 cells"), "{text}");
        let names = files(&place.at("out"), format);
        assert_eq!(names, [format!("{format}-00000-of-00001{suffix}")]);
        let copy = format!("copy-{format}");
        place.ok("import", &copy, &[&format!("out/{format}-*"), "--create"]);
        assert_eq!(place.cells(&copy), rows(500), "{format}");
    }
    assert!(files(place.dir.path(), "t.").is_empty(), "no state is left");
    assert!(files(&place.at("out"), ".").is_empty(), "no state is left");
    // A directory of files of several formats.
    place.ok("import", "all", &["out", "--create"]);
    assert_eq!(place.cells("all"), rows(500));
    // A second export of the name does not mix with the first.
    let (code, text) = place.tepui("export", "t", &["out/avro"]);
    assert!(code == 1 && text.contains("--overwrite"), "{text}");
    // One that is to replace it, and cannot be made, leaves it there.
    let (code, text) = place.tepui("export", "missing", &["out/avro", "--overwrite"]);
    assert!(code == 1 && text.contains("does not exist"), "{text}");
    assert_eq!(files(&place.at("out"), "avro").len(), 1);
}

#[test]
fn a_selection_is_exported() {
    let place = Place::new();
    place.write("rows.csv", &rows(30));
    place.ok("import", "t", &["rows.csv", "--create", "--timestamp=value-encoded"]);
    let lines = |args: &[&str]| {
        let args = [&["part", "--format=csv", "--overwrite"], args].concat();
        place.ok("export", "t", &args);
        place.read("part-00000-of-00001.csv")
    };
    assert_eq!(
        lines(&["--start=row-0003", "--end=row-0005", "--columns=f:a"]),
        ",f\n,a\nrow-0003,value 3\nrow-0004,value 4\n"
    );
    assert_eq!(
        lines(&["--prefix=row-002", "--families=f", "--columns=f:a"]).lines().count(),
        2 + 10
    );
    // What has no column is not counted as exported.
    let args = ["one", "--format=csv", "--start=row-0003", "--end=row-0005", "--columns=f:a"];
    let text = place.ok("export", "t", &args);
    assert!(text.contains("exported 2 rows, 2 cells"), "{text}");
    assert!(lines(&["--families=g"]).starts_with(",g\n,\"c,1\"\n"));
    for (args, word) in [
        (&["--families=x"][..], "no family"),
        (&["--start=b", "--end=a"], "ends before"),
        (&["--columns=a"], "FAMILY:QUALIFIER"),
        (&["--start=\\q"], "backslash"),
        (&["--files=0"], "number of files"),
        (&["--versions=2"], "one version"),
        (&["--prefix=nothing"], "no columns"),
    ] {
        let args = [&["wrong", "--format=csv"], args].concat();
        let (code, text) = place.tepui("export", "t", &args);
        assert!(code == 1 && text.contains(word), "{args:?}: {text}");
    }
    let (code, text) = place.tepui("export", "missing", &["x"]);
    assert!(code == 1 && text.contains("does not exist"), "{text}");
    for directory in ["data", "new/", "new/."] {
        let (code, text) = place.tepui("export", "t", &[directory]);
        assert!(code == 1 && text.contains("names a directory"), "{directory}: {text}");
        assert!(text.contains("data/part") || text.contains("new/part"), "{text}");
    }
    // A file that cannot be written ends the reading of its rows.
    let (code, text) = place.tepui("export", "t", &[&"x".repeat(226)]);
    assert!(code == 1 && text.contains("cannot write"), "{text}");
}

#[test]
fn what_cannot_be_written_is_set_aside_and_can_be_mended() {
    let place = Place::new();
    place.write("good.csv", ",f\n,a\nr0,v\n");
    place.ok("import", "t", &["good.csv", "--create"]);
    place.write("mixed.csv", ",f,h\n,a,b\nr1,v,\nr2,v,w\nr3,v\nr4,,\nr5,v,\n");
    let (code, text) = place.tepui("import", "t", &["mixed.csv"]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("imported 2 rows") && text.contains("2 records were rejected"), "{text}");
    assert!(text.contains("1 rows have no cells"), "{text}");
    let rejected = place.read("t.rejected.jsonl");
    let reasons: Vec<serde_json::Value> =
        rejected.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reasons[0]["record"], 1);
    assert!(reasons[0]["reason"].as_str().unwrap().contains("family \"h\" does not exist"));
    assert_eq!(reasons[1]["record"], 2);
    assert_eq!(reasons[1]["raw"], "r3,v");
    // The next import does not overwrite them; with the family made, the row among them can be imported.
    let (code, text) = place.tepui("import", "t", &["good.csv"]);
    assert!(code == 1 && text.contains("move it away"), "{text}");
    std::fs::rename(place.at("t.rejected.jsonl"), place.at("mend.jsonl")).unwrap();
    let (code, text) = place.tepui("import", "t", &["mend.jsonl", "--create"]);
    assert!(code == 3 && text.contains("imported 1 rows"), "{text}");
    assert_eq!(place.cells("t").lines().count(), 2 + 4);
    let (code, text) =
        place.tepui("import", "t", &["mixed.csv", "--max-rejected=0", "--rejected=other.jsonl"]);
    assert!(code == 1 && text.contains("--max-rejected"), "{text}");
}

#[test]
fn a_dry_run_says_what_would_happen_and_writes_nothing() {
    let place = Place::new();
    place.write("good.csv", ",f\n,a\nr0,v\n");
    place.ok("import", "t", &["good.csv", "--create"]);
    place.write("mixed.csv", ",f,h\n,a,b\nr1,v,\nr2,v,w\n");
    let (code, text) = place.tepui("import", "t", &["mixed.csv", "--dry-run"]);
    assert!(code == 3 && text.contains("would import 1 rows"), "{text}");
    assert!(text.contains("t.dry-run.jsonl has them"), "{text}");
    assert_eq!(place.cells("t").lines().count(), 2 + 1);
    let (code, text) = place.tepui("import", "t", &["mixed.csv"]);
    assert!(code == 3 && text.contains("t.rejected.jsonl has them"), "{text}");
    let text = place.ok("import", "new", &["good.csv", "--dry-run", "--create"]);
    assert!(text.contains("would import 1 rows"), "{text}");
    let (code, _) = place.tepui("import", "new", &["good.csv"]);
    assert_eq!(code, 1, "the table was not made");
}

#[test]
fn an_import_that_was_killed_goes_on_and_leaves_the_table_as_one_that_was_not() {
    let place = Place::new();
    // The state is written when the first record is set aside, if not before: most rows come behind that.
    let bad = "row,with,too,many,fields\n";
    let all = rows(3000);
    let (before, behind) = all.split_at(all.find("row-0200").unwrap());
    place.write("rows.csv", &[before, bad, behind].concat());
    let args =
        ["rows.csv", "--create", "--timestamp=value-encoded", "--batch-size=2", "--in-flight=1"];
    let mut killed = tepui(place.dir.path(), &["import", "--endpoint", &place.endpoint]);
    killed.args(["--project=p", "--instance=i", "--table=t"]).args(args);
    let mut killed = killed.stdout(Stdio::null()).spawn().unwrap();
    // The first state says nothing of the file. A server that stands still holds what is left of it: it is written by batches of two
    // rows, one after the other.
    let noted = || {
        let text = std::fs::read(place.at("t.import.json")).ok()?;
        let state: serde_json::Value = serde_json::from_slice(&text).unwrap();
        state["files"][0]["records"].as_u64()
    };
    while noted().is_none_or(|records| records == 0) {
        assert!(killed.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    let server = Pid::from_child(&place.server.process);
    kill_process(server, Signal::STOP).unwrap();
    assert!(killed.try_wait().unwrap().is_none());
    killed.kill().unwrap();
    killed.wait().unwrap();
    kill_process(server, Signal::CONT).unwrap();
    let (code, text) = place.tepui("import", "t", &args);
    assert!(code == 1 && text.contains("--resume goes on"), "{text}");
    let (code, text) = place.tepui("import", "t", &[&args[..], &["--resume"]].concat());
    assert!(code == 3 && text.contains("imported 3000 rows"), "{text}");
    assert_eq!(place.read("t.rejected.jsonl").lines().count(), 1, "set aside once");
    assert_eq!(place.cells("t"), rows(3000));
}

#[test]
fn what_is_done_ends_well_though_nobody_can_be_told_and_going_on_from_nothing_is_said() {
    let place = Place::new();
    place.write("rows.csv", &rows(3));
    let run = |command: &str, args: &[&str], out: Stdio| {
        let mut command = tepui(place.dir.path(), &[command, "--endpoint", &place.endpoint]);
        command.args(["--project=p", "--instance=i", "--table=t"]).args(args);
        let done = command.stdout(out).output().unwrap();
        (done.status.code().unwrap(), String::from_utf8(done.stderr).unwrap())
    };
    for (out, why) in [(closed(), "Broken pipe"), (full(), "No space left")] {
        let (code, text) = run("import", &["rows.csv", "--create"], out);
        assert!(code == 0 && text.contains(why), "{code}: {text}");
        assert!(text.contains("imported 3 rows"), "{text}");
    }
    let (code, text) = run("import", &["rows.csv", "--resume"], Stdio::null());
    assert!(code == 0 && text.contains("t.import.json is not there"), "{text}");
    assert!(text.contains("begins anew"), "{text}");
    place.write("mixed.csv", ",f\n,a\nr1,v,w\nr2,v\n");
    assert_eq!(run("import", &["mixed.csv"], full()).0, 3);
    let (code, text) = run("export", &["part", "--resume"], full());
    assert!(code == 0 && text.contains(".part.export.json is not there"), "{text}");
    assert!(text.contains("begins anew") && text.contains("exported 4 rows"), "{text}");
}

#[test]
fn an_export_that_fails_leaves_no_directories_that_it_made() {
    let place = Place::new();
    std::fs::create_dir(place.at("there")).unwrap();
    let (code, text) = place.tepui("export", "none", &["there/a/b/part"]);
    assert!(code == 1 && text.contains("does not exist"), "{text}");
    assert_eq!(files(&place.at("there"), ""), [""; 0]);
    place.write("rows.csv", &rows(3));
    place.ok("import", "t", &["rows.csv", "--create"]);
    place.ok("export", "t", &["there/a/b/part"]);
    assert_eq!(files(&place.at("there/a/b"), ""), ["part-00000-of-00001.avro"]);
}

#[test]
fn names_that_are_not_utf_8_lose_no_rows_and_replace_nothing() {
    let place = Place::new();
    place.write("rows.csv", &rows(3));
    std::fs::create_dir(place.at("in")).unwrap();
    std::fs::copy(place.at("rows.csv"), place.at("in").join(OsStr::from_bytes(b"caf\xe9.csv")))
        .unwrap();
    for args in [&["in"][..], &["in/*.csv"], &["in", "--dry-run"]] {
        let (code, text) = place.tepui("import", "t", &[args, &["--create"]].concat());
        assert!(code == 1 && text.contains("in/caf\\xe9.csv"), "{args:?}: {text}");
    }
    let (code, text) = place.tepui("import", "t", &["rows.csv"]);
    assert!(code == 1 && text.contains("does not exist"), "the table was not made: {text}");
    place.ok("import", "t", &["rows.csv", "--create"]);
    let export = |output: &[u8]| {
        let mut command = tepui(place.dir.path(), &["export", "--endpoint", &place.endpoint]);
        command.args(["--project=p", "--instance=i", "--table=t"]).arg(OsStr::from_bytes(output));
        let done = command.output().unwrap();
        (done.status.code().unwrap(), String::from_utf8(done.stderr).unwrap())
    };
    assert_eq!(export(b"caf\xe9/part").0, 0);
    let (code, text) = export(b"caf\xe9/part");
    assert!(code == 1 && text.contains("--overwrite"), "{text}");
    let (code, text) = export(b"out/caf\xe9");
    assert!(code == 1 && text.contains("caf\\xe9: the name is not UTF-8"), "{text}");
    assert!(!place.at("out").exists());
}

#[test]
fn an_export_offers_no_format_that_only_imports_have() {
    let place = Place::new();
    let (_, help) = place.tepui("export", "t", &["--help"]);
    assert!(help.contains("sequencefile") && !help.contains("rejected"), "{help}");
    assert_eq!(place.tepui("export", "t", &["part", "--format=rejected"]).0, 2);
    assert!(place.tepui("import", "t", &["--help"]).1.contains("rejected"));
}

#[test]
fn an_error_that_nobody_reads_is_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        ["export", "--endpoint=127.0.0.1:1", "--project=p", "--instance=i", "--table=t", "x"];
    let ended = tepui(dir.path(), &args).stderr(closed()).status().unwrap();
    assert_eq!(ended.code(), Some(1));
}

#[test]
fn a_directory_goes_on_although_the_progress_is_kept_in_it_and_what_was_set_aside_is_not_lost() {
    let place = Place::new();
    std::fs::create_dir(place.at("in")).unwrap();
    let run = |args: &[&str]| {
        let kept = ["--state=in/t.import.json", "--rejected=in/t.rejected.jsonl"];
        place.tepui("import", "t", &[args, &kept].concat())
    };
    place.write("in/good.csv", ",f\n,a\nr0,v\n");
    let (code, text) = run(&["in/good.csv", "--create"]);
    assert_eq!(code, 0, "{text}");
    place.write("in/mixed.csv", ",f\n,a\nr1,v,w\nr2,v\n");
    let (code, text) = run(&["in", "--max-rejected=0"]);
    assert!(code == 1 && text.contains("--max-rejected"), "{text}");
    let (code, text) = run(&["in", "--resume", "--max-rejected=0"]);
    assert!(code == 1 && text.contains("--max-rejected"), "{text}");
    let (code, text) = run(&["in", "--resume"]);
    assert!(code == 3 && text.contains("imported 2 rows"), "{text}");
    assert!(text.contains("from 2 files"), "{text}");
    let rejected = "in/t.rejected.jsonl";
    for args in [&[rejected][..], &[rejected, "--restart"], &["in", "--restart"]] {
        let (code, text) = run(args);
        assert!(code == 1 && text.contains("--rejected"), "{args:?}: {text}");
        assert_eq!(place.read(rejected).lines().count(), 1, "{args:?}");
    }
    // What lies in a directory below is not left out without a word: here it is the server's.
    let (code, text) = place.tepui("import", "t", &["."]);
    assert!(code == 1 && text.contains("./data"), "{text}");
}

#[test]
fn an_export_that_lost_its_server_goes_on_with_the_files_that_are_missing() {
    let place = Place::new();
    place.write("rows.csv", &rows(100));
    place.ok("import", "t", &["rows.csv", "--create", "--timestamp=value-encoded"]);
    place.ok("export", "t", &["whole"]);
    // What an export leaves that was killed before its only file was whole.
    let state = serde_json::json!({
        "version": 2, "server": place.endpoint, "table": "projects/p/instances/i/tables/t",
        "format": "avro",
        "selection": {"range": {"start": "", "end": ""}, "families": [], "versions": null},
        "timestamps": "now", "columns": [],
        "shards": [
            {"range": {"start": "", "end": "cm93LTAwNTA="}, "done": null},
            {"range": {"start": "cm93LTAwNTA=", "end": ""}, "done": [50, 150, 9]},
        ],
    });
    place.write(".part.export.json", &state.to_string());
    place.write("part-00001-of-00002.avro", "was whole");
    let (code, text) = place.tepui("export", "t", &["part"]);
    assert!(code == 1 && text.contains("--resume goes on"), "{text}");
    let (code, text) = place.tepui("export", "t", &["part", "--versions=1", "--resume"]);
    assert!(code == 1 && text.contains("another selection"), "{text}");
    let text = place.ok("export", "t", &["part", "--resume"]);
    assert!(text.contains("exported 100 rows, 300 cells into 2 files"), "{text}");
    assert_eq!(place.read("part-00001-of-00002.avro"), "was whole");
    let copied = place.ok("import", "copy", &["part-00000-of-00002.avro", "--create"]);
    assert!(copied.contains("imported 50 rows"), "{copied}");
    assert!(!place.at(".part.export.json").exists());
}

#[test]
fn wrong_files_and_places_are_refused_in_words() {
    let place = Place::new();
    place.write("good.csv", ",f\n,a\nr0,v\n");
    place.write("noise", "what is this");
    place.write("torn.avro", "Obj\u{1}");
    place.write("stray.csv", ",f\n,a\nk1,\"5 inch\nk2,v2\n");
    place.write("part-00001-of-00002.csv", ",f\n,a\nr0,v\n");
    place.ok("import", "t", &["good.csv", "--create"]);
    for (args, word) in [
        (&["missing.csv"][..], "no such file"),
        (&["/dev/null"], "no regular file"),
        (&["noise"], "give --format"),
        (&["noise", "--format=csv"], "noise"),
        (&["good.csv", "--format=avro"], "Avro"),
        (&["good.csv", "torn.avro", "--timestamp=value-encoded"], "CSV only"),
        (&["good.csv", "--format=avro", "--column-family=f"], "CSV only"),
        (&["torn.avro"], "torn.avro"),
        (&["stray.csv"], "line 3: a quote that is not closed"),
        (&["part-*"], "part-00000-of-00002.csv is not there"),
        (&["good.csv", "--workers=0"], "workers"),
        (&["good.csv", "--batch-size=100001"], "rows of a request"),
    ] {
        let args = [args, &["--restart"]].concat();
        let (code, text) = place.tepui("import", "t", &args);
        assert!(code == 1 && text.contains(word), "{args:?}: {text}");
    }
    let (code, text) = place.tepui("import", "missing", &["good.csv"]);
    assert!(code == 1 && text.contains("--create"), "{text}");
    for pair in [["--resume", "--restart"], ["--dry-run", "--resume"], ["--dry-run", "--restart"]] {
        let (code, _) = place.tepui("import", "t", &["good.csv", pair[0], pair[1]]);
        assert_eq!(code, 2, "{pair:?}");
    }
    let mut nowhere = place;
    nowhere.endpoint = "127.0.0.1:1".to_owned();
    let (code, text) = nowhere.tepui("import", "t", &["good.csv", "--restart"]);
    assert!(code == 1 && text.contains("127.0.0.1:1"), "{text}");
}
