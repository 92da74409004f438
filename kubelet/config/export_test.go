package config

// String is the operation's name as upstream logs it.
func (o Op) String() string {
	return [...]string{"ADD", "UPDATE", "DELETE", "RECONCILE", "REMOVE"}[o]
}
