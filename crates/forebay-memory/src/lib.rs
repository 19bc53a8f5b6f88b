//! Where bytes can live: static placement of buffers with known lifetimes.
