"""Figures that would pass in the paper: functions of records, never of running code."""
