//! Finds a program as execvp(3) does, and refuses one on which a preload has no effect.

use object::elf;
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The interpreter of a script may be a script, too. The kernel follows at most this many
/// interpreters (fs/exec.c).
const SCRIPT_LEVELS: usize = 5;

/// The reason why a program cannot run under the drop-in.
type Refusal = String;

fn refuse<T>(file: &Path, cause: impl fmt::Display) -> Result<T, Refusal> {
    Err(format!("{}: {cause}", file.display()))
}

/// The file that execvp(3) would execute for `name`.
///
/// # Errors
/// The program was not found, or is not executable.
pub fn resolve(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Refusal> {
    let given = Path::new(name);
    if name.is_empty() {
        return Err("PROGRAM is '', expected the name of a program".into());
    }
    if name.as_bytes().contains(&b'/') {
        return match std::fs::metadata(given) {
            Err(error) => refuse(given, describe(&error)),
            Ok(_) if is_executable(given) => Ok(given.to_owned()),
            Ok(found) if found.is_dir() => refuse(given, "is a directory, not a program"),
            Ok(_) => refuse(given, "not executable (no permission, see chmod(1))"),
        };
    }
    let mut denied = None;
    for folder in std::env::split_paths(path.unwrap_or(OsStr::new("/bin:/usr/bin"))) {
        let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
        let candidate = folder.join(name);
        if is_executable(&candidate) {
            return Ok(candidate);
        }
        if candidate.is_file() {
            denied.get_or_insert(candidate);
        }
    }
    match denied {
        Some(candidate) => refuse(&candidate, "not executable (no permission, see chmod(1))"),
        None => refuse(given, "no such program in any folder of PATH"),
    }
}

/// The parts of an ELF file that the loader uses.
#[derive(Debug, PartialEq, Eq)]
struct Image {
    class: elf::FileClass,
    data: elf::DataEncoding,
    machine: elf::Machine,
    /// The file asks for a dynamic loader.
    dynamic: bool,
    /// The file name of the program's loader, if it is within the part that was read.
    loader: Option<OsString>,
}

/// Refuses a program on which a preload has no effect, or which could not start at all.
///
/// # Errors
/// The file (of a script: its interpreter) and the cause.
pub fn check(program: &Path) -> Result<(), Refusal> {
    check_level(program, SCRIPT_LEVELS)
}

fn check_level(program: &Path, levels: usize) -> Result<(), Refusal> {
    check_privileges(program)?;
    let bytes = match read_program(program) {
        Ok(bytes) => bytes,
        // A program may be executable and not readable. Then it cannot be checked, and is started.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Ok(()),
        Err(error) => return refuse(program, describe(&error)),
    };
    if let Some(line) = bytes.strip_prefix(b"#!") {
        return check_script(program, line, levels);
    }
    if !bytes.starts_with(&elf::ELFMAG) {
        return refuse(program, "neither an ELF program nor a script that begins with #!");
    }
    let Some(theirs) = parse(&bytes) else {
        return refuse(program, "an ELF file, but a damaged one");
    };
    let ours = read_program(Path::new("/proc/self/exe")).ok().and_then(|bytes| parse(&bytes));
    if let Some(ours) = ours {
        let of = |image: &Image| (image.class, image.data, image.machine);
        if of(&theirs) != of(&ours) {
            let cause = format!(
                "built for {}, and the drop-in for {}",
                architecture(&theirs),
                architecture(&ours)
            );
            return refuse(program, cause);
        }
        if let (Some(theirs), Some(ours)) = (&theirs.loader, &ours.loader)
            && theirs != ours
        {
            let cause = format!(
                "its loader is {}, the drop-in's is {}: another C library",
                theirs.display(),
                ours.display()
            );
            return refuse(program, cause);
        }
    }
    if !theirs.dynamic {
        return refuse(
            program,
            "statically linked: no dynamic loader runs that could preload the drop-in",
        );
    }
    Ok(())
}

fn check_script(script: &Path, line: &[u8], levels: usize) -> Result<(), Refusal> {
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|w| !w.is_empty())
        .map(OsStr::from_bytes);
    let Some(interpreter) = words.next().map(Path::new) else {
        return refuse(script, "a script whose #! line names no interpreter");
    };
    let blame = |refusal: Refusal| {
        format!("{}: its interpreter cannot be used: {refusal}", script.display())
    };
    if levels == 0 {
        return refuse(script, "too many scripts that interpret scripts");
    }
    resolve(interpreter.as_os_str(), None).map_err(blame)?;
    check_level(interpreter, levels - 1).map_err(blame)?;
    // `#!/usr/bin/env python3`: the program that env finds is checked, if env has no options.
    if interpreter.file_name() == Some(OsStr::new("env"))
        && let Some(name) = words
            .next()
            .filter(|w| !w.as_bytes().contains(&b'=') && !w.as_bytes().starts_with(b"-"))
    {
        let found = resolve(name, std::env::var_os("PATH").as_deref()).map_err(blame)?;
        check_level(&found, levels - 1).map_err(blame)?;
    }
    Ok(())
}

/// The loader ignores LD_PRELOAD in a program that gains privileges (ld.so(8), secure-execution
/// mode).
fn check_privileges(program: &Path) -> Result<(), Refusal> {
    let metadata = match std::fs::metadata(program) {
        Ok(metadata) => metadata,
        Err(error) => return refuse(program, describe(&error)),
    };
    let mode = metadata.permissions().mode();
    let ignored = "the loader ignores preloaded libraries for such programs";
    if mode & libc::S_ISUID != 0 {
        return refuse(program, format!("setuid: {ignored}"));
    }
    if mode & libc::S_ISGID != 0 {
        return refuse(program, format!("setgid: {ignored}"));
    }
    if has_capabilities(program) {
        return refuse(program, format!("has file capabilities (getcap(8)): {ignored}"));
    }
    Ok(())
}

fn has_capabilities(program: &Path) -> bool {
    rustix::fs::getxattr_query(program, "security.capability").is_ok_and(|size| size > 0)
}

fn is_executable(path: &Path) -> bool {
    let allowed = rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS);
    // A sandbox that refuses the question says nothing of the file.
    let may_be = allowed.is_ok() || allowed == Err(Errno::PERM);
    may_be
        && path
            .metadata()
            .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// The headers are at the beginning of every file that a linker makes; the rest may be gigabytes.
fn read_program(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(1 << 20).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parse(bytes: &[u8]) -> Option<Image> {
    macro_rules! image {
        ($header:ty) => {{
            let header = <$header>::parse(bytes).ok()?;
            let endian = header.endian().ok()?;
            let segments = header.program_headers(endian, bytes).ok()?;
            let segment = segments.iter().find(|s| s.p_type(endian) == elf::PT_INTERP);
            let path = segment.and_then(|segment| segment.data(endian, bytes).ok());
            let path = path.map(|path| path.strip_suffix(b"\0").unwrap_or(path));
            Some(Image {
                class: header.e_ident().class,
                data: header.e_ident().data,
                machine: header.e_machine(endian),
                dynamic: segment.is_some(),
                loader: path
                    .and_then(|p| Some(Path::new(OsStr::from_bytes(p)).file_name()?.into())),
            })
        }};
    }
    match elf::FileClass(*bytes.get(elf::ELFMAG.len())?) {
        elf::ELFCLASS64 => image!(elf::FileHeader64<object::Endianness>),
        elf::ELFCLASS32 => image!(elf::FileHeader32<object::Endianness>),
        _ => None,
    }
}

fn architecture(image: &Image) -> String {
    let machine = match image.machine {
        elf::EM_386 => "x86",
        elf::EM_X86_64 => "x86-64",
        elf::EM_ARM => "ARM",
        elf::EM_AARCH64 => "AArch64",
        elf::EM_RISCV => "RISC-V",
        elf::EM_PPC64 => "PowerPC",
        elf::EM_S390 => "S/390",
        elf::EM_LOONGARCH => "LoongArch",
        other => return format!("machine type {} ({} bits)", other.0, bits(image)),
    };
    format!("{machine} ({} bits)", bits(image))
}

fn bits(image: &Image) -> u8 {
    if image.class == elf::ELFCLASS64 { 64 } else { 32 }
}

fn describe(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".into(),
        std::io::ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
