//! object_store's own integration tests, unchanged, and tokio's traits over an object.

use object_store::integration as theirs;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use uringlet_store::Store;

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path()).unwrap();
    (folder, store)
}

/// The tests that `LocalFileSystem` runs on itself.
#[tokio::test]
async fn it_passes_the_tests_of_object_store() {
    let (_folder, store) = store();
    theirs::put_get_delete_list(&store).await;
    theirs::list_with_offset_exclusivity(&store).await;
    theirs::get_opts(&store).await;
    theirs::list_uses_directories_correctly(&store).await;
    theirs::list_with_delimiter(&store).await;
    theirs::rename_and_copy(&store).await;
    theirs::copy_if_not_exists(&store).await;
    theirs::copy_rename_nonexistent_object(&store).await;
    theirs::stream_get(&store).await;
    theirs::put_opts(&store, false).await;
}

#[test]
fn it_passes_them_without_tokio() {
    let (_folder, store) = store();
    futures::executor::block_on(async {
        theirs::put_get_delete_list(&store).await;
        theirs::list_uses_directories_correctly(&store).await;
        theirs::list_with_delimiter(&store).await;
    });
}

#[tokio::test]
async fn ranges_are_what_the_object_holds_there() {
    let (_folder, store) = store();
    let data: Vec<u8> = (0..300_000u32).map(|at| (at / 3 % 251) as u8).collect();
    let path = Path::from("a/b/object");
    store.put(&path, data.clone().into()).await.unwrap();
    let ranges = [0..10, 5..200_000, 299_990..300_010, 7..7 + 70_000];
    let found = store.get_ranges(&path, &ranges).await.unwrap();
    for (range, bytes) in ranges.iter().zip(found) {
        let end = range.end.min(300_000) as usize;
        assert!(bytes[..] == data[range.start as usize..end]);
    }
    assert!(store.get(&path).await.unwrap().bytes().await.unwrap() == data[..]);
}

#[tokio::test]
async fn an_object_is_read_by_lines_through_a_cursor() {
    use tokio::io::AsyncBufReadExt as _;
    let (folder, store) = store();
    let path = Path::from("lines");
    store.put(&path, "one\ntwo\nthree".into()).await.unwrap();
    let file = uringlet::fs::File::open(folder.path().join("lines")).await.unwrap();
    let mut lines = uringlet::fs::Cursor::new(file, 64 << 10).lines();
    for expected in ["one", "two", "three"] {
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some(expected));
    }
    assert_eq!(lines.next_line().await.unwrap(), None);
}
