//! Checks tensor descriptors of arbitrary numbers against 128-bit arithmetic that cannot overflow.
#![no_main]

use forebay_base::tensor::{implied_size_bytes, BASE_OFFSET_ALIGNMENT_BYTES, DIMENSIONS_MAX};
use forebay_base::{DataType, TensorDesc};
use libfuzzer_sys::fuzz_target;

/// Takes numbers off the front of the fuzzer's bytes; small ones are as likely as large ones.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    fn number(&mut self) -> u64 {
        let length = usize::from(self.byte() % 9);
        (0..length).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }
}

/// The implied size in bytes according to the specification, in wide numbers; `None` if even those overflow.
fn expected_size_bytes(data_type: DataType, sizes: &[u64], strides: Option<&[u64]>) -> Option<u128> {
    let elements = match strides {
        None => sizes.iter().try_fold(1u128, |product, &size| product.checked_mul(size.into()))?,
        Some(strides) => sizes.iter().zip(strides).try_fold(1u128, |sum, (&size, &stride)| {
            sum.checked_add(u128::from(size - 1).checked_mul(stride.into())?)
        })?,
    };
    elements.checked_mul(data_type.size_bytes().into())?.checked_next_multiple_of(4)
}

fuzz_target!(|bytes: &[u8]| {
    let mut numbers = Numbers(bytes);
    let data_type = DataType::ALL[usize::from(numbers.byte()) % DataType::ALL.len()];
    let rank = usize::from(numbers.byte() % 10);
    let sizes: Vec<u64> = (0..rank).map(|_| numbers.number()).collect();
    let strides: Option<Vec<u64>> = (numbers.byte() % 2 == 1).then(|| {
        let count = if numbers.byte() == 0 { rank + 1 } else { rank };
        (0..count).map(|_| numbers.number()).collect()
    });
    let implied = implied_size_bytes(data_type, &sizes, strides.as_deref());
    let made = match &strides {
        None => TensorDesc::packed(data_type, &sizes),
        Some(strides) => TensorDesc::strided(data_type, &sizes, strides),
    };
    assert_eq!(implied.is_ok(), made.is_ok());
    let valid = (1..=DIMENSIONS_MAX).contains(&rank)
        && sizes.iter().all(|&size| size > 0)
        && strides.as_ref().is_none_or(|strides| strides.len() == rank);
    let Ok(desc) = made else {
        if valid {
            // Refused only because it is too large, either in bits or in its number of logical elements.
            let count = sizes.iter().try_fold(1u128, |product, &size| product.checked_mul(size.into()));
            let size = expected_size_bytes(data_type, &sizes, strides.as_deref());
            let too_large = size.is_none_or(|size| size > u128::from(u64::MAX - 64) / 8);
            assert!(too_large || count.is_none_or(|count| count > u64::MAX.into()), "{sizes:?} {strides:?}");
        }
        return;
    };
    assert!(valid);
    let expected = expected_size_bytes(data_type, &sizes, strides.as_deref()).expect("made, so it fits");
    assert_eq!(u128::from(desc.total_size_bytes()), expected);
    let (total, alignment) = (numbers.number(), numbers.number());
    let larger = desc.clone().with_total_size_bytes(total);
    if total < desc.total_size_bytes() {
        assert!(larger.is_err());
    }
    let desc = larger.unwrap_or(desc);
    if let Ok(aligned) = desc.clone().with_guaranteed_base_offset_alignment(alignment) {
        assert!(alignment == 0 || (alignment.is_power_of_two() && alignment >= data_type.size_bytes()));
        let (offset, bound) = (numbers.number(), numbers.number());
        let unit = alignment.max(BASE_OFFSET_ALIGNMENT_BYTES);
        let fits = bound >= aligned.total_size_bytes() && offset % unit == 0;
        assert_eq!(aligned.check_binding(offset, bound).is_ok(), fits);
    }
    let limit = numbers.number();
    let elements = desc.total_size_bytes() / data_type.size_bytes();
    assert_eq!(desc.check_elements(limit).is_ok(), elements <= limit);
    let _ = (desc.is_packed(), desc.element_count(), desc.to_string());
});
