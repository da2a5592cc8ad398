"""When does compression pay: processor parts measured on this device, the wire predicted for any bandwidth."""
