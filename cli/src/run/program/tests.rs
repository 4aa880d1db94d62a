//! Small programs, made for the test, that must be refused or accepted.

#![allow(unsafe_code)]

use super::*;
use crate::skip::skipped;
use std::ffi::CString;
use std::process::Command;

/// An executable file with this content.
fn program(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    set_mode(&path, 0o755);
    path
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn refusal(path: &Path) -> String {
    check(path).expect_err("it was let through").to_string()
}

/// This test program itself: dynamically linked if uringlet is.
fn own_elf() -> Vec<u8> {
    std::fs::read("/proc/self/exe").unwrap()
}

#[test]
fn dynamic_programs_and_their_scripts_are_let_through() {
    let folder = tempfile::tempdir().unwrap();
    let elf = program(folder.path(), "elf", own_elf());
    check(&elf).unwrap();
    check(Path::new("/bin/sh")).unwrap();
    let script = program(folder.path(), "script", "#!/bin/sh -e\nexit\n");
    check(&script).unwrap();
    check(&program(folder.path(), "outer", format!("#! {}\n", script.display()))).unwrap();
    check(&program(folder.path(), "env", "#!/usr/bin/env sh\n")).unwrap();
}

#[test]
fn static_programs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("main.c");
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    for flag in ["-static", "-static-pie"] {
        let out = folder.path().join(flag);
        let made = Command::new("cc").arg(flag).arg(&source).arg("-o").arg(&out).output();
        if !made.is_ok_and(|made| made.status.success()) {
            skipped("static_programs_are_refused", format!("cc cannot link with {flag} here"));
            continue;
        }
        let refusal = refusal(&out);
        assert!(refusal.contains("statically linked"), "{refusal}");
        assert!(refusal.starts_with(&out.display().to_string()), "{refusal}");
    }
}

#[test]
fn other_architectures_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = own_elf();
    // e_machine follows the 16 bytes of e_ident and the 2 of e_type.
    let ours = u16::from_ne_bytes([bytes[18], bytes[19]]);
    let (theirs, name) = match ours {
        value if value == elf::EM_AARCH64.0 => (elf::EM_X86_64, "x86-64"),
        _ => (elf::EM_AARCH64, "AArch64"),
    };
    bytes[18..20].copy_from_slice(&theirs.0.to_ne_bytes());
    let refusal = refusal(&program(folder.path(), "other", bytes));
    assert!(refusal.contains(&format!("built for {name} (64 bits)")), "{refusal}");
}

#[test]
fn another_c_library_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = own_elf();
    let Some(at) = bytes.windows(9).position(|window| window == b"ld-linux-") else {
        skipped("another_c_library_is_refused", "this program does not use glibc's loader");
        return;
    };
    bytes[at..at + 9].copy_from_slice(b"ld-musl--");
    let refusal = refusal(&program(folder.path(), "musl", bytes));
    assert!(refusal.contains("another C library"), "{refusal}");
}

#[test]
fn what_is_no_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&str, &[u8], &str); 5] = [
        ("text", b"hello", "neither an ELF program nor a script"),
        ("empty", b"", "neither an ELF program nor a script"),
        ("cut", &own_elf()[..50], "damaged"),
        ("nothing", b"#! \n", "names no interpreter"),
        ("lost", b"#!/no/such/thing\n", "/no/such/thing: no such file"),
    ];
    for (name, content, cause) in cases {
        let refusal = refusal(&program(folder.path(), name, content));
        assert!(refusal.contains(cause), "{name}: {refusal}");
    }
    let endless = folder.path().join("endless");
    program(folder.path(), "endless", format!("#!{}\n", endless.display()));
    assert!(refusal(&endless).contains("too many scripts"));
}

#[test]
fn a_script_is_refused_for_its_interpreter() {
    let folder = tempfile::tempdir().unwrap();
    let text = program(folder.path(), "text", "hello");
    let script = program(folder.path(), "script", format!("#!{} -x\n", text.display()));
    let refusal = refusal(&script);
    assert!(refusal.contains("its interpreter cannot be used"), "{refusal}");
    assert!(refusal.contains(&text.display().to_string()), "{refusal}");
}

#[test]
fn privileged_programs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = program(folder.path(), "elf", own_elf());
    for (mode, word) in [(0o4755, "setuid"), (0o2755, "setgid")] {
        set_mode(&path, mode);
        let refusal = refusal(&path);
        assert!(refusal.contains(word) && refusal.contains("loader ignores"), "{refusal}");
    }
}

#[test]
fn programs_with_file_capabilities_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = program(folder.path(), "elf", own_elf());
    // struct vfs_cap_data, revision 2: CAP_NET_RAW (13) permitted.
    let words: [u32; 5] = [0x0200_0000, 1 << 13, 0, 0, 0];
    let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: both names end in NUL, and the value is as long as given.
    let set = unsafe {
        let attribute = c"security.capability".as_ptr();
        libc::setxattr(name.as_ptr(), attribute, value.as_ptr().cast(), value.len(), 0)
    };
    if set != 0 {
        skipped("programs_with_file_capabilities_are_refused", std::io::Error::last_os_error());
        return;
    }
    assert!(refusal(&path).contains("file capabilities"));
}

#[test]
fn programs_are_found_as_execvp_finds_them() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = std::env::join_paths([first.path(), second.path()]).unwrap();
    let find = |name: &str| resolve(OsStr::new(name), Some(&path)).map_err(|e| e.to_string());
    assert!(find("tool").unwrap_err().contains("tool: no such program in any folder of PATH"));

    let denied = first.path().join("tool");
    std::fs::write(&denied, "").unwrap();
    set_mode(&denied, 0o644);
    assert!(find("tool").unwrap_err().contains("not executable"));

    let good = program(second.path(), "tool", "#!/bin/sh\n");
    assert_eq!(find("tool").unwrap(), good);
    assert_eq!(find(good.to_str().unwrap()).unwrap(), good);
    assert!(find(denied.to_str().unwrap()).unwrap_err().contains("not executable"));
    assert!(find(first.path().to_str().unwrap()).unwrap_err().contains("is a directory"));
    assert!(find("./no/such").unwrap_err().contains("no such file"));
}
