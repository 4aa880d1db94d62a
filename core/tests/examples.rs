//! The examples do what they say.

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
