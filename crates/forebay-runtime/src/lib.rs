//! Now: the executor of plans and its trace.
