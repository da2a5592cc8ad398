"""Hosts with shaped links and limited processors on one Linux box."""
