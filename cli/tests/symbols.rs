//! The engine must not use the drop-ins: nothing in uringlet may call a C function that a drop-in
//! replaces. The drop-in would take such a call for the program's. So each ring would need another
//! ring, each close would count as the program's close, and a wait would wait for itself. System
//! calls that uringlet makes by its own instructions reach the kernel.

mod skip;

use object::elf;
use object::read::elf::ElfFile64;
use object::read::{Object as _, ObjectSection as _, ObjectSymbol as _, ObjectSymbolTable as _};
use object::{RelocationFlags, RelocationTarget, SymbolKind};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DROP_INS: [&str; 3] = ["libaio.so", "libposix_aio.so", "liburing.so"];
const OTHERS: [&str; 1] = ["liburinglet_capi.so"];

/// Calls that are allowed: the function, a part of the caller's name, and the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("syscall", "std::", "futex, statx, gettid: a jump leads on to the C library"),
    ("close", "std::", "what std has opened itself: nobody's requests are on such a number"),
    ("closedir", "std::", "what std has opened itself: likewise"),
    ("fcntl", "std::", "F_GETFD, which builds with assertions ask before they close"),
    ("mmap64", "std::", "memory of no file, and files of which stack traces are made: no rings"),
    ("read", "std::", "files that std has opened itself: nobody polls them"),
    ("read", "uringlet_capi::owned", "the program's eventfd, of which its polls are to be told"),
    ("mmap", "io_uring::util::Mmap", "the number is one that the kernel has just made a ring of"),
    ("close", "io_uring::util::fd", "the engine's ring: no request is on its number"),
    ("sigaction", "posix_aio::signals", "asks what the program has set, as the program would"),
    ("close", "uring::calls::close", "the program's close(2), as an entry of a ring"),
    ("close", "uring::trap::close", "the program's close(2), by an instruction"),
    ("close", "uring::liburing", "the program's close(2) of a ring, in functions of liburing"),
    ("close", "io_uring_queue_init_params", "likewise"),
    ("mmap", "mmap64", "one name of the program's mmap(2) for the other"),
];

type Elf<'a> = ElfFile64<'a>;

/// A library that cargo has built, beside this test or in the folder above.
fn library(name: &str) -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    let folder = executable.parent().unwrap();
    let places = [folder.join("..").join(name), folder.join(name)];
    let built = places.into_iter().filter(|place| place.is_file());
    let newest = built.max_by_key(|place| place.metadata().and_then(|data| data.modified()).ok());
    newest.unwrap_or_else(|| panic!("{name} is not there: cargo build --workspace"))
}

/// The functions that a library exports.
fn exported(file: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(file).unwrap();
    let elf = Elf::parse(&*bytes).unwrap();
    let defined = elf.dynamic_symbols().filter(|symbol| symbol.is_definition());
    defined.map(|symbol| symbol.name().unwrap().to_owned()).collect()
}

fn c_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    paths.filter(|path| path.ends_with("/libc.so.6")).map(PathBuf::from).next().unwrap()
}

/// The functions of the C library that a drop-in replaces.
fn answered() -> BTreeSet<String> {
    let ours = DROP_INS.iter().flat_map(|name| exported(&library(name)));
    let theirs = exported(&c_library());
    ours.filter(|name| theirs.contains(name)).collect()
}

/// The callers of these functions, and code or data that holds their addresses. Each pair has the
/// function, and the mangled name of the caller or the data.
fn calls(elf: &Elf, functions: &BTreeSet<String>) -> BTreeSet<(String, String)> {
    let mut places: Vec<(u64, &str)> = elf
        .symbols()
        .filter(|symbol| matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Data))
        .filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?)))
        .collect();
    places.sort_unstable();
    let owner = |address: u64| {
        let behind = places.partition_point(|&(at, _)| at <= address);
        places[behind.checked_sub(1).expect("it has its symbols")].1.to_owned()
    };
    let symbols = elf.dynamic_symbol_table().unwrap();
    let (mut found, mut slots) = (BTreeSet::new(), BTreeMap::new());
    for (at, relocation) in elf.dynamic_relocations().unwrap() {
        let RelocationTarget::Symbol(index) = relocation.target() else { continue };
        let name = symbols.symbol_by_index(index).unwrap().name().unwrap();
        let RelocationFlags::Elf { r_type } = relocation.flags() else { unreachable!() };
        match r_type {
            _ if !functions.contains(name) => {}
            elf::R_X86_64_GLOB_DAT => drop(slots.insert(at, name.to_owned())),
            // Any other relocation stores the function's address in data.
            _ => drop(found.insert((name.to_owned(), owner(at)))),
        }
    }
    let text = elf.section_by_name(".text").unwrap();
    let Some(reach) = slots.first_key_value().zip(slots.last_key_value()) else { return found };
    let reach = *reach.0.0..=*reach.1.0;
    // Code reads a slot of the global offset table relative to the next instruction. It does so by
    // call, jmp and push (0xff), mov (0x8b) or cmp (0x39, 0x3b). Other bytes may look like these,
    // so the distance has to lead to a slot.
    for (at, bytes) in text.data().unwrap().windows(6).enumerate() {
        let [opcode, operand, distance @ ..] = bytes else { unreachable!() };
        let at = text.address() + at as u64 + 2;
        let distance = i32::from_le_bytes(distance.try_into().unwrap());
        let target = (at + 4).wrapping_add_signed(distance.into());
        let reads = [0xff, 0x8b, 0x39, 0x3b].contains(opcode) && operand & 0xc7 == 5;
        if reads
            && reach.contains(&target)
            && let Some(name) = slots.get(&target)
        {
            found.insert((name.clone(), owner(at)));
        }
    }
    found
}

fn demangled(names: &BTreeSet<(String, String)>) -> Vec<(String, String)> {
    let mut filter = Command::new("c++filt")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("binutils: run ci/setup.sh");
    let text: String = names.iter().map(|(_, caller)| format!("{caller}\n")).collect();
    filter.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = String::from_utf8(filter.wait_with_output().unwrap().stdout).unwrap();
    // The names lose the hashes of crates: `std[0123…]::fs` becomes `std::fs`.
    let plain = |line: &str| {
        let parts = line.split('[').map(|part| match part.split_once(']') {
            Some((hash, rest)) if hash.len() == 16 => rest.to_owned(),
            _ => part.to_owned(),
        });
        parts.collect::<String>()
    };
    names.iter().map(|(name, _)| name.clone()).zip(output.lines().map(plain)).collect()
}

#[test]
fn nothing_of_ours_calls_what_a_drop_in_answers() {
    let name = "nothing_of_ours_calls_what_a_drop_in_answers";
    if !cfg!(target_arch = "x86_64") {
        return skip::skipped(name, "knows how x86-64 reads an address");
    }
    if !cfg!(debug_assertions) {
        return skip::skipped(name, "an optimised build has callees inside of their callers");
    }
    let functions = answered();
    assert!(["syscall", "close", "mmap", "aio_read"].iter().all(|&name| functions.contains(name)));
    let (mut used, mut wrong) = (BTreeSet::new(), Vec::new());
    for library_name in DROP_INS.iter().chain(&OTHERS) {
        let bytes = std::fs::read(library(library_name)).unwrap();
        let calls = calls(&Elf::parse(&*bytes).unwrap(), &functions);
        for (function, caller) in demangled(&calls) {
            let exception = EXCEPTIONS
                .iter()
                .position(|&(name, part, _)| name == function && caller.contains(part));
            match exception {
                Some(index) => drop(used.insert(index)),
                None => wrong.push(format!("{library_name}: {caller} calls {function}")),
            }
        }
    }
    let useless = (0..EXCEPTIONS.len()).filter(|index| !used.contains(index));
    wrong.extend(useless.map(|index| format!("nothing needs {:?}", EXCEPTIONS[index])));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
