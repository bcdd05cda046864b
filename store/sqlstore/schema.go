package sqlstore

import _ "embed"

// schemaVersion is the version of both schemas. A database of any other is refused.
const schemaVersion = 1

// applicationID marks databases of SQLite as lokt's: "lokt" in ASCII.
const applicationID = 0x6c6f6b74

//go:embed schema/sqlite.sql
var sqliteSchema string
