//! A request: its operation, and the entry for the engine.

use std::ffi::c_int;

use uringlet::Sqe;
use uringlet::front::Place;

use crate::abi;

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
    Sync,
    DataSync,
    /// Unknown to lio_listio(3): accepted, and fails.
    Unknown(c_int),
}

impl Operation {
    /// The operation of an `aio_lio_opcode`.
    pub(crate) fn of(opcode: c_int) -> Self {
        // In the C library, bit 7 is a flag for 64-bit offsets.
        match opcode & 127 {
            abi::LIO_READ => Self::Read,
            abi::LIO_WRITE => Self::Write,
            abi::LIO_SYNC => Self::Sync,
            abi::LIO_DSYNC => Self::DataSync,
            _ => Self::Unknown(opcode),
        }
    }

    pub(crate) fn opcode(self) -> c_int {
        match self {
            Self::Read => abi::LIO_READ,
            Self::Write => abi::LIO_WRITE,
            Self::Sync => abi::LIO_SYNC,
            Self::DataSync => abi::LIO_DSYNC,
            Self::Unknown(opcode) => opcode,
        }
    }
}

/// An accepted request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) sqe: Sqe,
    pub(crate) data: u64,
    pub(crate) notify: i32,
}

impl Ready {
    pub(crate) fn is_sync(&self) -> bool {
        self.sqe.opcode == uringlet::opcode::FSYNC
    }

    pub(crate) fn fildes(&self) -> c_int {
        self.sqe.fd
    }

    /// The address of the control block.
    pub(crate) fn address(&self) -> u64 {
        self.sqe.user_data
    }

    pub(crate) fn data(&self) -> u64 {
        self.data
    }

    #[inline]
    pub(crate) fn fill(&self, place: Place<'_>) {
        (*place.sqe, *place.data, *place.notify) = (self.sqe, self.data, self.notify);
    }
}
