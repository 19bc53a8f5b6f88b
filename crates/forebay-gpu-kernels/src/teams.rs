//! How many invocations of a workgroup combine elements together: `kernels/teams.slang`.

/// Invocations of a workgroup: must be `WORKGROUP_SIZE` of the shaders.
pub(super) const WORKGROUP_SIZE: u64 = 256;
/// Elements that one invocation combines.
pub(super) const INVOCATION_ELEMENTS: u64 = 32;
/// Elements that a small team combines; more are for a whole workgroup.
const TEAM_ELEMENTS: u64 = 4096;
/// Invocations of a small team.
pub(super) const SMALL_TEAM: u64 = 32;

/// How many invocations combine this number of elements: a function of their number alone, so that no other size changes a sum's order.
pub(super) fn team_of(elements: u64) -> u64 {
    if elements <= INVOCATION_ELEMENTS {
        1
    } else if elements <= TEAM_ELEMENTS {
        SMALL_TEAM
    } else {
        WORKGROUP_SIZE
    }
}

/// The parameters that `place_of` of `teams.slang` reads: `interleaved` where neighbouring invocations have neighbouring outputs.
pub(super) fn team_words(groups: [u32; 3], team: u64, interleaved: bool) -> [u32; 3] {
    [groups[0], team as u32, u32::from(interleaved)]
}
