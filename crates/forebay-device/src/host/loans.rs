//! Memories of the host device that are backed by memory that the process lends.

use std::collections::BTreeMap;

use forebay_base::{MemoryId, Region};

use super::address::Address;
use crate::device::DeviceError;
use crate::loan::Loan;

/// The alignment that kernels assume for the first byte of a memory.
const ALIGNMENT_BYTES: usize = 16;

/// A memory and its loan, if it has one.
struct Place {
    size_bytes: u64,
    lent: Option<Lent>,
}

/// A loan that backs a memory.
struct Lent {
    address: Address,
    may_be_written: bool,
    loan: Loan,
}

/// Memories that are backed by memory that the process lends.
#[derive(Default)]
pub(super) struct Loans {
    places: BTreeMap<MemoryId, Place>,
}

impl Loans {
    /// Adds a memory without a loan.
    pub fn add(&mut self, memory: MemoryId, size_bytes: u64) {
        self.places.insert(memory, Place { size_bytes, lent: None });
    }

    /// Backs a memory with a loan. Returns the loan as the error if its size differs, if it is not aligned, or if the memory has one
    /// already.
    pub fn lend(&mut self, memory: MemoryId, mut loan: Loan) -> Result<(), Loan> {
        let Some(place) = self.places.get_mut(&memory).filter(|place| place.lent.is_none()) else { return Err(loan) };
        let (address, bytes, may_be_written) = match &mut loan {
            Loan::ToRead(owner) => {
                let bytes = (**owner).as_ref();
                (bytes.as_ptr().cast_mut(), bytes.len(), false)
            }
            Loan::ToWrite(bytes) => (bytes.as_mut_ptr(), bytes.len(), true),
        };
        if bytes as u64 != place.size_bytes || !address.addr().is_multiple_of(ALIGNMENT_BYTES) {
            return Err(loan);
        }
        place.lent = Some(Lent { address: Address(address), may_be_written, loan });
        Ok(())
    }

    /// Takes the loan back from a memory.
    pub fn give_back(&mut self, memory: MemoryId) -> Option<Loan> {
        Some(self.places.get_mut(&memory)?.lent.take()?.loan)
    }

    /// Removes a memory.
    pub fn remove(&mut self, memory: MemoryId) {
        self.places.remove(&memory);
    }

    /// Returns the address of a region; `None` if its memory is not one of these.
    ///
    /// # Errors
    /// Returns an error if the region exceeds its memory, if nothing is lent, or if `write` is set and the loan may only be read.
    pub fn resolve(&self, region: Region, write: bool) -> Option<Result<Address, DeviceError>> {
        let place = self.places.get(&region.memory)?;
        let refused = |what: &str| Some(Err(DeviceError::Lost { reason: format!("{region} {what}") }));
        let Some(lent) = &place.lent else { return refused("has no lent memory behind it") };
        if region.range.end > place.size_bytes {
            return refused("exceeds what was lent");
        }
        if write && !lent.may_be_written {
            return refused("was lent only for reading, but would be written");
        }
        // SAFETY: the offset lies inside the lent bytes, which the loan keeps in place: it owns the vector, which it does not touch, or a
        // share of the owner, which may give them to readers for as long as it is shared.
        Some(Ok(Address(unsafe { lent.address.0.add(region.range.start as usize) })))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_loan_is_used_where_it_is_and_comes_back() {
        let (memory, mut loans) = (MemoryId(7), Loans::default());
        loans.add(memory, 64);
        let region = Region::new(memory, 16, 8);
        assert!(loans.resolve(Region::new(MemoryId(8), 0, 1), false).is_none());
        assert!(loans.resolve(region, false).is_some_and(|found| found.is_err()), "nothing is lent");
        assert!(loans.lend(memory, Loan::ToWrite(vec![0; 63])).is_err(), "another size");
        let bytes = vec![5u8; 64];
        let address = bytes.as_ptr().addr();
        loans.lend(memory, Loan::ToWrite(bytes)).expect("it fits");
        assert!(loans.lend(memory, Loan::ToWrite(vec![0; 64])).is_err(), "there is one already");
        let found = loans.resolve(region, true).expect("a loan's").expect("lent to be written");
        assert_eq!(found.0.addr(), address + 16);
        // SAFETY: inside the vector, which no one else uses.
        unsafe { found.0.write(9) };
        assert!(loans.resolve(Region::new(memory, 60, 8), false).is_some_and(|found| found.is_err()), "beyond the end");
        let Some(Loan::ToWrite(bytes)) = loans.give_back(memory) else { panic!("what was lent") };
        assert_eq!((bytes.as_ptr().addr(), bytes[16], bytes[17]), (address, 9, 5));
        assert!(loans.give_back(memory).is_none());
    }

    #[test]
    fn what_was_lent_to_be_read_is_not_written() {
        let (memory, mut loans) = (MemoryId(1), Loans::default());
        loans.add(memory, 32);
        let owner = Arc::new(vec![1u8; 32]);
        loans.lend(memory, Loan::ToRead(owner.clone())).expect("it fits");
        let region = Region::new(memory, 0, 32);
        let read = loans.resolve(region, false).expect("a loan's").expect("to be read");
        assert_eq!(read.0.addr(), owner.as_ptr().addr());
        assert!(loans.resolve(region, true).is_some_and(|found| found.is_err()));
        assert_eq!(Arc::strong_count(&owner), 2);
        loans.remove(memory);
        assert_eq!(Arc::strong_count(&owner), 1);
        let odd = Arc::new(vec![1u8; 48]);
        struct From1(Arc<Vec<u8>>);
        impl AsRef<[u8]> for From1 {
            fn as_ref(&self) -> &[u8] {
                &self.0[1..33]
            }
        }
        loans.add(memory, 32);
        assert!(loans.lend(memory, Loan::ToRead(Arc::new(From1(odd)))).is_err(), "not aligned");
    }
}
