//! Prepares the system calls of entries. A worker or the submitting thread makes each call later.
//! Paths and other input that an entry points to are copied here.

use super::Fields;
use crate::abi::op;
use crate::calls::Call;
use crate::user;

pub(super) type Made = Result<Call, i32>;

/// The size of `struct open_how` in its first version.
pub(super) const OPEN_HOW: u32 = 24;

pub(super) fn open(fields: &Fields) -> Made {
    let is_first = fields.opcode() == op::OPENAT;
    let how = if is_first { [0; 3] } else { how(fields.off() as usize, fields.len() as usize)? };
    let (dir, path) = (fields.fd(), user::path(fields.addr())?);
    if path.is_empty() {
        return Err(-libc::ENOENT);
    }
    let (open, flags) = if is_first {
        let flags = fields.op_flags();
        (Call::Open { dir, path, flags, mode: fields.len() }, flags.into())
    } else {
        (Call::Open2 { dir, path, how }, how[0])
    };
    match fields.slot() {
        None => Ok(open),
        Some(_) if flags & libc::O_CLOEXEC as u64 != 0 => Err(-libc::EINVAL),
        Some(_) => Ok(Call::OpenAside(Box::new(open))),
    }
}

/// A `struct open_how` of any version. What this version does not have must be 0.
fn how(at: usize, size: usize) -> Result<[u64; 3], i32> {
    const PIECE: usize = 4096;
    let known = user::read(at)?;
    let mut done = OPEN_HOW as usize;
    while done < size {
        let piece = user::read_bytes(at.wrapping_add(done), PIECE.min(size - done))?;
        if piece.iter().any(|&byte| byte != 0) {
            return Err(-libc::E2BIG);
        }
        done += piece.len();
    }
    Ok(known)
}

pub(super) fn close(fields: &Fields) -> Made {
    Ok(Call::Close { fd: fields.fd() })
}

pub(super) fn madvise(fields: &Fields) -> Made {
    // A length of 64 bits is in the field that is usually an offset.
    let len = if fields.off() != 0 { fields.off() } else { fields.len().into() };
    Ok(Call::Madvise { at: fields.addr(), len, advice: fields.op_flags() })
}

pub(super) fn statx(fields: &Fields) -> Made {
    let (path, flags) = (user::path(fields.addr())?, fields.op_flags());
    Ok(Call::Statx { dir: fields.fd(), path, flags, mask: fields.len(), out: fields.off() })
}

pub(super) fn unlink(fields: &Fields) -> Made {
    let path = user::path(fields.addr())?;
    Ok(Call::Unlink { dir: fields.fd(), path, flags: fields.op_flags() })
}

/// Renames a file, or gives it a further name (LINKAT).
pub(super) fn rename(fields: &Fields) -> Made {
    let from = (fields.fd(), user::path(fields.addr())?);
    let to = (fields.len() as i32, user::path(fields.off())?);
    let flags = fields.op_flags();
    Ok(match fields.opcode() {
        op::RENAMEAT => Call::Rename { from, to, flags },
        _ => Call::Link { from, to, flags },
    })
}

pub(super) fn symlink(fields: &Fields) -> Made {
    let (target, path) = (user::path(fields.addr())?, user::path(fields.off())?);
    Ok(Call::Symlink { target, dir: fields.fd(), path })
}

pub(super) fn mkdir(fields: &Fields) -> Made {
    Ok(Call::Mkdir { dir: fields.fd(), path: user::path(fields.addr())?, mode: fields.len() })
}

pub(super) fn splice(fields: &Fields) -> Made {
    let (from, to) = (fields.file_index() as i32, fields.fd());
    let (len, flags) = (fields.len(), fields.op_flags());
    Ok(match fields.opcode() {
        op::TEE => Call::Tee { from, to, len, flags },
        _ => {
            let (from, to) = ((from, fields.addr() as i64), (to, fields.off() as i64));
            Call::Splice { from, to, len, flags }
        }
    })
}

/// Sets or gets an extended attribute of a path or of a file.
pub(super) fn xattr(fields: &Fields) -> Made {
    const XATTR_NAME_MAX: usize = 255;
    const XATTR_SIZE_MAX: u32 = 65536;
    let (opcode, fd, flags) = (fields.opcode(), fields.fd(), fields.op_flags());
    let (at, len) = (fields.off(), fields.len());
    let name = user::string(fields.addr() as usize, XATTR_NAME_MAX + 1, -libc::ERANGE)?;
    let path = || user::path(fields.addr3());
    let value = || match len {
        ..=XATTR_SIZE_MAX => user::read_bytes(at as usize, len as usize),
        _ => Err(-libc::E2BIG),
    };
    Ok(match opcode {
        op::SETXATTR => Call::SetXattr { value: value()?, path: path()?, name, flags },
        op::FSETXATTR => Call::FSetXattr { value: value()?, fd, name, flags },
        op::GETXATTR => Call::GetXattr { path: path()?, name, value: at, len },
        _ => Call::FGetXattr { fd, name, value: at, len },
    })
}
