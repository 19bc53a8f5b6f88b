//! A forward graph becomes a training step.
