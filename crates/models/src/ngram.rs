//! count models
