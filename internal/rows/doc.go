// Package rows sums up locks and jobs for people, a row each, in the words that the dashboard, lokt top and lokt job list
// share. It asks services, as any client does.
package rows
