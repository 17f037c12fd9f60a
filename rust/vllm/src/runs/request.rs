//! The questions that a run asks its engine.

/// One request of the engine, as a run reads it.
pub trait RequestView {
    /// The error that reading the engine's objects may raise.
    type Error;

    /// Tokens of the request's prompt.
    ///
    /// # Errors
    /// If the engine's objects give no answer.
    fn prompt_tokens(&self) -> Result<usize, Self::Error>;

    /// Tokens that the request has, computed or not, without drafts.
    ///
    /// # Errors
    /// If the engine's objects give no answer.
    fn tokens(&self) -> Result<usize, Self::Error>;

    /// Tokens that the engine counts as computed, including those of steps under way and their drafts.
    ///
    /// # Errors
    /// If the engine's objects give no answer.
    fn computed(&self) -> Result<usize, Self::Error>;

    /// Tokens that are certainly computed: none of a step under way and no draft that may be rejected.
    ///
    /// # Errors
    /// If the engine's objects give no answer.
    fn processed(&self) -> Result<usize, Self::Error>;

    /// How many leading blocks have a known key.
    ///
    /// # Errors
    /// If the engine's objects give no answer.
    fn keys(&self) -> Result<usize, Self::Error>;

    /// The engine block in a column of one of the request's block tables; 0 if there is none.
    ///
    /// # Errors
    /// If the engine's objects give no answer.
    fn block(&self, table: usize, column: usize) -> Result<u32, Self::Error>;

    /// Whether the engine knows a block of a table as the state after so many tokens of this request.
    ///
    /// # Errors
    /// If the engine's objects give no answer.
    fn carries(&self, table: usize, block: u32, tokens: usize) -> Result<bool, Self::Error>;
}
