"""Rules and codemods as they are declared, found, and measured."""
