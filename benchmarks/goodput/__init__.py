"""The highest rate that holds an objective, for several contenders."""
