//! rmw
