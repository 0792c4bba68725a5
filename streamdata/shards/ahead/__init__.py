"""Reading ahead: windows that are planned → requests by due time → bytes in memory."""
