//! How many invocations of a workgroup combine elements together: `kernels/teams.slang`.

/// The number of invocations in a workgroup; must equal `WORKGROUP_SIZE` in the shaders.
pub(super) const WORKGROUP_SIZE: u64 = 256;
/// The maximum number of elements that a single invocation combines.
pub(super) const INVOCATION_ELEMENTS: u64 = 32;
/// The maximum number of elements that a small team combines; a whole workgroup combines more.
const TEAM_ELEMENTS: u64 = 4096;
/// The number of invocations in a small team.
pub(super) const SMALL_TEAM: u64 = 32;

/// Returns how many invocations combine this number of elements. It depends only on that number, so that no other size changes a sum's
/// order.
pub(super) fn team_of(elements: u64) -> u64 {
    if elements <= INVOCATION_ELEMENTS {
        1
    } else if elements <= TEAM_ELEMENTS {
        SMALL_TEAM
    } else {
        WORKGROUP_SIZE
    }
}

/// Returns the parameters that `place_of` in `teams.slang` reads; `interleaved` says whether neighboring invocations have neighboring
/// outputs.
pub(super) fn team_words(groups: [u32; 3], team: u64, interleaved: bool) -> [u32; 3] {
    [groups[0], team as u32, u32::from(interleaved)]
}
