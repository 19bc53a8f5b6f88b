//! Searches for the best of a family of attempts that differ in one share.
//!
//! How much of a memory to fill, how many candidates for recomputation to take, how much of the waits to give from the start: each of these
//! is a number in a range, little is known about how good an attempt with it will be, and placement or rounding makes neighboring values
//! differ. All of them are searched in the same way: first evenly spaced shares, as long as they get better, then shares around the best
//! one at half the distance, at a quarter, and so on.

use std::convert::Infallible;

/// The shares that are tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareSearch {
    /// The first share.
    pub from: f64,
    /// The last share; it can be the smaller one.
    pub to: f64,
    /// The number of equal steps that lead from one to the other.
    pub steps: u32,
    /// The number of attempts in a row that are no better than an earlier one after which no further steps are made.
    pub patience: u32,
    /// How often the distance is halved around the best share.
    pub halvings: u32,
}

impl ShareSearch {
    /// Tries a single share.
    pub const fn only(share: f64) -> ShareSearch {
        ShareSearch { from: share, to: share, steps: 0, patience: 1, halvings: 0 }
    }

    /// Returns the best attempt with its share; `None` if none succeeded. An attempt is given its share and the best attempt so far, and
    /// returns a result only if it is better than that.
    ///
    /// # Errors
    /// Returns the first error of an attempt, which ends the search.
    pub fn try_best<T, E>(
        &self,
        mut attempt: impl FnMut(f64, Option<&T>) -> Result<Option<T>, E>,
    ) -> Result<Option<(f64, T)>, E> {
        let mut best: Option<(f64, T)> = None;
        let mut distance = (self.to - self.from) / f64::from(self.steps.max(1));
        let mut futile = 0;
        for step in 0..=self.steps {
            let share = self.from + distance * f64::from(step);
            match attempt(share, best.as_ref().map(|(_, found)| found))? {
                Some(found) => (best, futile) = (Some((share, found)), 0),
                None => futile += u32::from(best.is_some()),
            }
            if futile == self.patience {
                break;
            }
        }
        let (low, high) = (self.from.min(self.to), self.from.max(self.to));
        for _ in 0..self.halvings {
            distance /= 2.0;
            let Some(center) = best.as_ref().map(|(share, _)| *share) else { break };
            for share in [center - distance, center + distance] {
                if (low..=high).contains(&share) {
                    let found = attempt(share, best.as_ref().map(|(_, found)| found))?;
                    best = found.map(|found| (share, found)).or(best);
                }
            }
        }
        Ok(best)
    }

    /// The same as [`ShareSearch::try_best`], for attempts without errors.
    pub fn best<T>(&self, mut attempt: impl FnMut(f64, Option<&T>) -> Option<T>) -> Option<(f64, T)> {
        match self.try_best(|share, best| Ok::<_, Infallible>(attempt(share, best))) {
            Ok(best) => best,
            Err(never) => match never {},
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shares that are tried if attempts cost `cost`, and the best one.
    fn tried(search: ShareSearch, cost: impl Fn(f64) -> Option<f64>) -> (Vec<f64>, Option<f64>) {
        let mut shares = Vec::new();
        let best = search.best(|share, best: Option<&f64>| {
            shares.push(share);
            cost(share).filter(|cost| best.is_none_or(|best| cost < best))
        });
        (shares, best.map(|(share, _)| share))
    }

    #[test]
    fn steps_end_when_they_are_futile_and_the_best_share_is_refined() {
        let search = ShareSearch { from: 1.0, to: 0.0, steps: 4, patience: 2, halvings: 2 };
        let (shares, best) = tried(search, |share| Some((share - 0.88).abs()));
        assert_eq!((shares, best), (vec![1.0, 0.75, 0.5, 0.875, 0.9375, 0.8125], Some(0.875)));
    }

    #[test]
    fn what_fails_is_not_futile_before_something_succeeds() {
        let search = ShareSearch { from: 1.0, to: 0.0, steps: 4, patience: 1, halvings: 1 };
        let (shares, best) = tried(search, |share| (share < 0.3).then_some(1.0 - share));
        assert_eq!((shares, best), (vec![1.0, 0.75, 0.5, 0.25, 0.0, 0.375, 0.125], Some(0.25)));
        let (shares, best) = tried(search, |_| None);
        assert_eq!((shares.len(), best), (5, None));
        assert_eq!(tried(ShareSearch::only(0.4), |_| Some(1.0)), (vec![0.4], Some(0.4)));
    }

    #[test]
    fn an_error_ends_the_search() {
        let search = ShareSearch { from: 0.0, to: 1.0, steps: 4, patience: 9, halvings: 0 };
        let found = search.try_best(|share, _: Option<&f64>| if share < 0.5 { Ok(Some(share)) } else { Err(share) });
        assert_eq!(found, Err(0.5));
    }
}
