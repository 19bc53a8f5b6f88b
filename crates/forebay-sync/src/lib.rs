//! What must wait: hazards, barriers, happens-before and the race checker.
