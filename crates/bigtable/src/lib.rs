//! Bigtable semantics.
