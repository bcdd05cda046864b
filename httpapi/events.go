package httpapi

func (s *server) routeEvents() {}
