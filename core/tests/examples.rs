//! The examples do what they say.

use std::io::Write as _;

#[path = "../examples/copy.rs"]
mod copy;

#[test]
fn copy_copies_files_of_any_length() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    for length in [0, 1, 64 * 1024, 5 * 1024 * 1024 + 17] {
        let data: Vec<u8> = (0..length).map(|at: usize| (at / 7 % 251) as u8).collect();
        std::fs::write(&from, &data).unwrap();
        assert_eq!(copy::copy(&from, &to).unwrap(), length as u64);
        assert!(std::fs::read(&to).unwrap() == data, "{length} bytes");
    }
    assert!(copy::copy(&folder.path().join("none"), &to).is_err());
}

/// Cargo builds the example beside this test, unless only this test was asked for.
#[test]
fn checksum_sums_ten_thousand_blocks() {
    let test = std::env::current_exe().unwrap();
    let example = test.ancestors().nth(2).unwrap().join("examples/checksum");
    if !example.exists() {
        let name = "checksum_sums_ten_thousand_blocks";
        let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: the example was not built");
        return;
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[3; 4096 * 100]).unwrap();
    let output = std::process::Command::new(example).arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, format!("{}\n", 3 * 4096 * 10_000).into_bytes());
}
