"""The real router and workers under virtual time, with steps that take what was measured."""
