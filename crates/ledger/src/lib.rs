//! Every large byte under a name and an account, predicted and measured by one list.
