//! Path doctor: finds what limits transfers on a path, proves it by experiments, and predicts the gain of each fix.
//!
//! Pure parts: window arithmetic of kernels ([`kernel`]), response functions ([`response`]), and the plan of a path
//! ([`plan`]). Refuses to read a clock or open a socket there.

pub mod kernel;
pub mod plan;
pub mod response;
