//! Groups of buffers that exist first as specs, then as memory.
//!
//! A group is declared once; its specs are what a plan lists, and mapping them to buffers is what
//! allocates. So nothing can be allocated that was not predicted.

/// Declares a struct of equal fields with `map` (specs to buffers) and `each`.
macro_rules! slots {
    ($(#[$doc:meta])* struct $name:ident { $($(#[$field_doc:meta])* $field:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name<B> {
            $($(#[$field_doc])* pub(crate) $field: B,)+
        }

        impl<B> $name<B> {
            /// Turns every field, in order, into something else.
            pub(crate) fn map<C, E>(
                self,
                f: &mut impl FnMut(B) -> Result<C, E>,
            ) -> Result<$name<C>, E> {
                Ok($name { $($field: f(self.$field)?,)+ })
            }

            /// Calls `f` on every field, in order.
            pub(crate) fn each(&self, f: &mut impl FnMut(&B)) {
                $(f(&self.$field);)+
            }
        }
    };
}
pub(crate) use slots;
